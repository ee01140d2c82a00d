"""The releases of ONNX Runtime that are known: the opset that each loads, and what is known of each."""

from __future__ import annotations

from onnxperf.ground.releases import Release, opset_in, release

#: The highest opset of ONNX that each release loads: until 1.10 from docs/Versioning.md of its source, later ones as
#: their packages load or refuse files of each opset.
OPSETS = {
    "1.4": 12, "1.6": 13, "1.8": 14, "1.9": 15, "1.11": 16, "1.12": 17, "1.14": 18, "1.15": 19, "1.17": 20, "1.18": 21,
    "1.21": 22, "1.23": 23, "1.24": 25, "1.25": 26,
}  # fmt: skip
NEWEST = "1.31"
#: Those whose graphs these rules were compared with. What changed between two of them is taken to have come right
#: after the first, unless something tells more: since DATED, small graphs that the packages for the CPU wrote, and from
#: 1.19 on those for CUDA.
COMPARED = ("1.11", "1.12", "1.16", NEWEST)
DATED = "1.17"


def opset(at: Release) -> int:
    """The highest opset that a release loads."""
    return opset_in(OPSETS, at)


def says(at: Release) -> str:
    """What is known of the fusions of a release."""
    compared = [release(number) for number in COMPARED]
    if at in compared:
        return f"fusions of ONNX Runtime {at} were compared with graphs that it wrote"
    if at >= release(DATED):
        packages = "packages for CPU and CUDA" if at >= release("1.19") else "package for the CPU"
        return f"fusions of ONNX Runtime {at} are dated by small graphs that its {packages} wrote"
    after = next(r for r in compared if r > at)
    before = max((r for r in compared if r < at), default=None)
    inferred = f"fusions of ONNX Runtime {at} are inferred from graphs that {after} wrote"
    if before is None:
        return f"{inferred}, without those that its libraries or its kernels did not have yet"
    return f"{inferred}, but for those that its source dates: what {before} lacks may have come later than {at}"


def says_on_cuda(at: Release) -> str:
    """What is known of a release of the CUDA provider: its fusions and its kernels."""
    if at < release("1.11"):
        kernels = "pull requests and the kernels of 1.11 tell"
    elif release("1.23") < at < release(NEWEST):
        kernels = "those of 1.23 and 1.31 tell"
    else:
        kernels = "its own registry tells"
    return f"{says(at)}; which operators have a CUDA kernel {kernels}; how long kernels take is as today"
