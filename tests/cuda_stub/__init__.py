"""What ONNX Runtime's CUDA provider makes of a model, on a machine without a GPU.

Libraries that say "success" stand in for CUDA and cuDNN: `stub.c`, and for every other function whose name is in the
provider's file one that returns 0. Nothing can run on them, but a session that is only made has its real fusions,
placements and copies. It takes a C compiler and an environment of its own, as onnxruntime-gpu and onnxruntime are one
package to Python; ONNXPERF_CUDA_PYTHON names its interpreter:

    python3 -m venv cuda
    cuda/bin/pip install onnxruntime-gpu==1.31.1 'nvidia-cuda-runtime==13.*' 'nvidia-cuda-crt==13.*'
    ONNXPERF_CUDA_PYTHON=cuda/bin/python pytest tests/runtimes/test_cuda_oracle.py
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
from functools import cache
from math import prod
from pathlib import Path
from tempfile import mkdtemp

import onnx
from onnx import ModelProto, TensorProto, helper

SOURCE = Path(__file__).with_name("stub.c")
LIBRARIES = (
    "libcuda.so.1", "libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10", "libcufft.so.12",
    "libcudnn.so.9", "libnvrtc.so.13",
)  # fmt: skip
#: Every function of CUDA's, linked or looked up by name, that a provider's file names.
CALLED = re.compile(rb"((?:__cuda|cuda(?!Error|Success)|cudnn|cublas|cufft|curand|nvrtc|cu(?=[A-Z]))[A-Z]\w*)(?=\0)")
WHERE = "import importlib.util as u, site; print(u.find_spec('onnxruntime').origin); print(*site.getsitepackages())"
SESSION = """
import os, sys
import onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level = 4
options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, "ORT_ENABLE_" + sys.argv[3].upper())
options.optimized_model_filepath = sys.argv[2]
external = "session.optimized_model_external_initializers_"
options.add_session_config_entry(external + "file_name", "out.bin")
options.add_session_config_entry(external + "min_size_in_bytes", "1024")
session = ort.InferenceSession(sys.argv[1], options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
print(*session.get_providers(), flush=True)
os._exit(0)  # what the stubs freed is not to be cleaned up
"""


class Unavailable(Exception):
    """No ONNX Runtime with a CUDA provider, headers or compiler."""


@cache
def stubs() -> tuple[str, Path]:
    """The Python that has onnxruntime-gpu, and the folder of libraries in CUDA's place."""
    python = os.environ.get("ONNXPERF_CUDA_PYTHON")
    if not python:
        raise Unavailable("ONNXPERF_CUDA_PYTHON names no Python that has onnxruntime-gpu")
    found = subprocess.run([python, "-c", WHERE], capture_output=True, text=True, check=False)
    if found.returncode:
        raise Unavailable(f"{python} has no onnxruntime")
    package, sites = found.stdout.splitlines()
    provider = Path(package).parent / "capi" / "libonnxruntime_providers_cuda.so"
    headers = [h.parent for site in sites.split() for h in Path(site).glob("nvidia/*/include/driver_types.h")]
    compiler = shutil.which("cc")
    for missing, what in ((not provider.exists(), f"onnxruntime-gpu in {python}"), (not headers, "nvidia-cuda-runtime"),
                          (compiler is None, "a C compiler")):  # fmt: skip
        if missing:
            raise Unavailable(f"needs {what}")
    folder = Path(mkdtemp(prefix="cuda-stub-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "stub.c").write_text(_source(provider.read_bytes()))
    library = folder / "libstub.so"
    command = [compiler, "-shared", "-fPIC", "-w", f"-I{headers[0]}", "-o", str(library), str(folder / "stub.c")]
    subprocess.run([c for c in command if c], check=True, capture_output=True)
    for name in LIBRARIES:
        (folder / name).symlink_to(library.name)
    return python, folder


def _source(provider: bytes) -> str:
    """`stub.c`, and a function that succeeds for every other name; one that creates something gives it an address."""
    written = SOURCE.read_text()
    found = {name.decode() for name in CALLED.findall(provider)}
    names = found | {n.removeprefix("__") for n in found}  # a linker stores a name that ends another one only once
    rest = sorted(n for n in names if not re.search(rf"\b{n}\(", written))
    creates = re.compile(r"(Create|GetKernel|LibraryLoadData|EndCapture|Instantiate)")
    defined = (
        f"int {n}(void **p) {{ return handle(p); }}\n" if creates.search(n) else f"size_t {n}() {{ return 0; }}\n"
        for n in rest
    )  # fmt: skip
    return f"{written}\n{''.join(defined)}"


def optimised(model: ModelProto, level: str = "all", sm: int = 89) -> ModelProto:
    """The graph that a session on a GPU of that compute capability would run; weights are of zeros where the file
    has none.
    """
    python, libraries = stubs()
    folder = Path(mkdtemp(prefix="cuda-stub-"))
    try:
        (folder / "in.onnx").write_bytes(_with_zeros(model, folder / "zeros").SerializeToString())
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        environment |= {"LD_LIBRARY_PATH": str(libraries), "CUDA_STUB_SM": str(sm)}
        made = subprocess.run(
            [python, "-c", SESSION, "in.onnx", "out.onnx", level], cwd=folder, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if "CUDAExecutionProvider" not in made.stdout:
            raise RuntimeError(f"no session: {made.stderr[-1500:]}")
        return onnx.load(folder / "out.onnx", load_external_data=False)
    finally:
        shutil.rmtree(folder)


def _with_zeros(model: ModelProto, file: Path) -> ModelProto:
    """The model with its external weights in one file that has no blocks on the disk."""
    own, size = ModelProto(), 0
    own.CopyFrom(model)
    graphs = [own.graph]
    while graphs:
        graph = graphs.pop()
        graphs += [g for n in graph.node for a in n.attribute for g in (*([a.g] if a.HasField("g") else ()), *a.graphs)]
        for t in (*graph.initializer, *(a.t for n in graph.node for a in n.attribute if a.HasField("t"))):
            if t.data_location == TensorProto.EXTERNAL:
                length = prod(t.dims) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize
                if t.data_type in (TensorProto.INT4, TensorProto.UINT4):
                    length = (prod(t.dims) + 1) // 2
                del t.external_data[:]
                for key, value in (("location", file.name), ("offset", size), ("length", length)):
                    t.external_data.add(key=key, value=str(value))
                size += -(-length // 4096) * 4096
    with file.open("wb") as stream:
        stream.truncate(size)
    return own
