"""What PyTorch's modules become: the same model without weights, and the module is as it was."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import onnxperf
from onnxperf.export import source
from onnxperf.graph.module_path import SCOPES
from onnxperf.ground.errors import ModelError, UsageError

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
nn = torch.nn
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


class Net(nn.Module):
    """Convolutions with statistics, a branch that only training takes, and an output of two forms."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Dropout()
        self.head = nn.Linear(16, 300)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1))
        self.plain = torch.full((600,), 0.5)

    def forward(self, x: Any) -> Any:
        x = self.drop(torch.relu(self.norm(self.conv(x * self.scale))))
        return {"logits": self.head(x.mean((2, 3))), "plain": self.plain + 1}


class Tied(nn.Module):
    """One table that tokens are looked up in and that scores them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle, self.head = nn.Embedding(500, 32), nn.Linear(32, 32), nn.Linear(32, 500, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Any) -> Any:
        return self.head(self.middle(self.table(tokens))) + self.table.weight.sum(1)


class Branch(nn.Module):
    def forward(self, x: Any) -> Any:
        return x + 1 if x.sum() > 0 else x - 1


class Bessel(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.special.bessel_j0(x)


class Fixed(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.reshape(3, 4) * 2


class Options(nn.Module):
    """Arguments nested, left out, and no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, pair: Any, scale: float = 1.0, more: Any = None) -> Any:
        x = self.linear(pair["a"]) * scale + pair["b"][0]
        return x if more is None else x + more


class State:
    """What no exporter knows."""

    def __init__(self, keys: Any) -> None:
        self.layers, self.seen, self.dtype = [keys], True, keys.dtype


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.key = nn.Linear(4, 4), nn.Linear(4, 8)

    def forward(self, x: Any) -> Any:
        return self.linear(x), State(self.key(x))


class Closed(nn.Linear):
    """Lets itself not be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("there is one of a kind")


def model_of(model: Any, inputs: Any = None, open_batch: bool = False) -> Any:
    found, left = source(model, inputs, open_batch=open_batch)
    assert left is None
    return found


def really(module: Any, inputs: Any) -> Any:
    """PyTorch's own export with all weights inside, none like another."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for p in module.parameters():
            p.copy_(torch.randn(p.shape))
        args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else ((inputs,), None)
        program = torch.onnx.export(module.eval(), args, kwargs=kwargs, dynamo=True, verbose=False, optimize=True)
    return program.model_proto


def answers(model: Any, inputs: Any = None, **terms: Any) -> Any:
    p = onnxperf.predict(model, inputs, gpu="l4", **terms)
    return [(k.name, k.op, k.seconds) for k in p.kernels], p.memory.weights_bytes, p.seconds


@pytest.fixture(scope="module")
def of_net() -> Any:
    """What is predicted of Net as it runs for inference."""
    return answers(Net().eval(), torch.ones(2, 3, 8, 8))


def state(module: Any) -> Any:
    """All there is to a module: what it holds, by identity and by value, and how it is set."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return (
        [(n, id(t), t.data_ptr(), t.requires_grad, t.dtype, t.device, t.tolist()) for n, t in tensors],
        [
            (n, id(m), type(m), dict(vars(type(m))), m.training, list(vars(m)), dict(m._forward_hooks))
            for n, m in module.named_modules()
        ],
    )


def tiny(model: str, config: str, **size: Any) -> Any:
    hf = pytest.importorskip("transformers")
    return getattr(hf, model)(getattr(hf, config)(**size))


def tokens(*shape: int) -> Any:
    return torch.ones(shape, dtype=torch.int64)


def test_the_module_is_left_as_it_was(capfd: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    net = Net().train()
    net.norm.eval()
    net.conv.weight.requires_grad_(False)
    net.conv.register_forward_hook(lambda *_: None)
    plain, before, disabled = net.plain, state(net), logging.root.manager.disable
    filters = list(warnings.filters)
    with torch.device("cpu"):
        model_of(net, torch.ones(2, 3, 8, 8))
    assert state(net) == before
    assert net.plain is plain
    assert (logging.root.manager.disable, list(warnings.filters)) == (disabled, filters)
    assert torch.is_grad_enabled()
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_a_module_is_exported_as_it_runs_in_eval_mode(of_net: Any) -> None:
    assert answers(Net().train(), torch.ones(2, 3, 8, 8)) == of_net


def test_weights_are_nowhere_and_the_graph_bears_the_class_name() -> None:
    model = model_of(Net(), torch.ones(2, 3, 8, 8))
    assert model.graph.name == "Net"
    assert not model.functions
    assert not any(n.doc_string for n in model.graph.node)
    assert {entry.key for n in model.graph.node for entry in n.metadata_props} == {SCOPES}  # the modules around a node
    outside = {tuple(t.dims): t for t in model.graph.initializer if t.external_data}
    assert {(16, 3, 3, 3), (300,), (600,)} <= set(outside)
    assert not any(t.raw_data for t in outside.values())


@pytest.mark.parametrize(
    ("make", "dtype"),
    [(Net, torch.float32), (Net, torch.float16), (Tied, torch.float32), (Tied, torch.bfloat16)],
)
def test_it_predicts_as_the_export_with_weights(make: Any, dtype: Any) -> None:
    inputs = torch.ones(2, 3, 8, 8, dtype=dtype) if make is Net else tokens(2, 16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = make().to(dtype)
        whole = really(module, inputs)
    assert answers(module, inputs) == answers(whole)


@pytest.mark.parametrize(
    ("model", "config", "size", "inputs"),
    [
        ("BertModel", "BertConfig", SMALL, {"input_ids": (2, 16), "attention_mask": (2, 16)}),
        ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4, "use_cache": False}, (2, 16)),
        (
            "ResNetForImageClassification",
            "ResNetConfig",
            {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"},
            (2, 3, 32, 32),
        ),
    ],
)
def test_known_architectures_predict_as_the_export_with_weights(
    model: str, config: str, size: Any, inputs: Any
) -> None:
    module = tiny(model, config, **size)
    if isinstance(inputs, dict):
        given: Any = {name: tokens(*shape) for name, shape in inputs.items()}
    else:
        given = tokens(*inputs) if len(inputs) == 2 else torch.ones(inputs)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        whole = really(module, given)
    assert answers(module, given) == answers(whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_equal_small_weights_are_not_taken_for_one(dtype: Any) -> None:
    norms = nn.Sequential(*(nn.LayerNorm(64, dtype=dtype) for _ in range(20)))
    found = [t for t in model_of(norms, torch.ones(2, 64, dtype=dtype)).graph.initializer if t.dims == [64]]
    assert len(found) == len({t.raw_data for t in found}) == 40


def test_a_module_without_weights_predicts_the_same(of_net: Any) -> None:
    with torch.device("meta"):
        bare = Net()
        inputs = torch.ones(2, 3, 8, 8)
    assert answers(bare, inputs) == of_net
    assert all(p.is_meta for p in bare.parameters())


def test_what_torch_compile_wraps_is_what_is_predicted() -> None:
    found = model_of(torch.compile(Tied()), tokens(2, 16))
    assert found == model_of(Tied(), tokens(2, 16))


@pytest.mark.parametrize(
    "inputs",
    [
        {"input": np.zeros((3, 4), np.float32)},
        (torch.zeros(3, 4),),
        [torch.zeros(3, 4, requires_grad=True)],
        torch.zeros(3, 4),
        np.zeros((3, 4), np.float32),
        torch.zeros(3, 4, device="meta"),
    ],
)
def test_example_inputs_have_many_forms(inputs: Any) -> None:
    p = onnxperf.predict(nn.Linear(4, 5), inputs, gpu="l4")
    assert p.scenario.inputs == (("input", (3, 4)),)
    assert p.scenario.model == "Linear"


def test_example_inputs_may_be_nested_and_no_tensors() -> None:
    pair = {"a": torch.ones(3, 4), "b": [np.ones((3, 4), np.float32)]}
    one = onnxperf.predict(Options(), (pair,), gpu="l4")
    assert [shape for _, shape in one.scenario.inputs] == [(3, 4), (3, 4)]
    assert [k.op for k in one.kernels] == ["BiasRows", "Gemm", "Add"]
    more = onnxperf.predict(Options(), {"pair": pair, "scale": 2.0, "more": torch.ones(3, 4)}, gpu="l4", batch=7)
    assert [shape for _, shape in more.scenario.inputs] == [(7, 4)] * 3
    assert [k.op for k in more.kernels].count("Add") == 2


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (None, "needs example inputs"),
        (5, "example_inputs can't be of type int"),
        ((), r"does not run on these example inputs: .*missing 1 required"),
        ({"nope": torch.ones(3, 4)}, "unexpected keyword argument 'nope'"),
        (torch.ones(3, 7), r"does not run on these example inputs: .*\[3, 7\] X \[4, 5\]"),
        (np.array(["text"]), "no tensors of <U4"),
    ],
)
def test_wrong_example_inputs_are_told_in_the_frameworks_words(inputs: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as e:
        model_of(nn.Linear(4, 5), inputs)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("module", "open_batch", "says"),
    [
        (Branch(), False, "can't export Branch to ONNX: .*depends on the values of a tensor"),
        (Bessel(), True, r"can't export Bessel to ONNX: No ONNX function found .*bessel_j0"),
        (Closed(3, 3), False, "Closed can't be copied.*: there is one of a kind; export it with torch.export.export"),
    ],
)
def test_what_cant_be_exported_is_told_in_a_sentence(
    module: Any, open_batch: bool, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError, match=says) as e:
        model_of(module, torch.ones(3, 3), open_batch)
    assert len(str(e.value)) < 400
    assert "\n" not in str(e.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("examples", [1, 2])
def test_a_batch_is_open_where_one_is_asked_for(examples: int) -> None:
    sizes = {"d_model": 32, "nhead": 4, "dim_feedforward": 64, "batch_first": True}
    layer = nn.TransformerEncoderLayer(**sizes)
    p = onnxperf.predict(layer, torch.ones(examples, 10, 32), gpu="l4", batch=6)
    assert p.scenario.inputs == (("src", (6, 10, 32)),)
    alone = onnxperf.predict(layer, torch.ones(6, 10, 32), gpu="l4")
    assert p.work["matrix_flops"] == alone.work["matrix_flops"] > 0


def test_the_largest_batch_that_fits_is_found() -> None:
    class Wide(nn.Module):
        def forward(self, x: Any) -> Any:
            return (x.unsqueeze(1) * x.unsqueeze(2)).sum(1)

    p = onnxperf.predict(Wide(), torch.ones(1, 2000), gpu="l4", fit=True)
    assert 100 < p.scenario.batch < 10_000


def test_only_inputs_as_long_as_the_first_have_the_batch() -> None:
    class Masked(nn.Module):
        def forward(self, x: Any, mask: Any, scale: Any) -> Any:
            return (x + mask) * scale

    inputs = (torch.ones(2, 5, 5), torch.ones(5, 5), torch.tensor(2.0))
    p = onnxperf.predict(Masked(), inputs, gpu="l4", batch=9)
    assert [shape for _, shape in p.scenario.inputs] == [(9, 5, 5), (5, 5), ()]


def test_a_module_of_one_batch_says_what_to_give() -> None:
    with pytest.raises(
        UsageError, match=r"Fixed with a dynamic batch: .*give example inputs of the batch that you want"
    ):
        onnxperf.predict(Fixed(), torch.ones(3, 4), gpu="l4", fit=True)
    with pytest.raises(UsageError, match="Fixed does not run on these example inputs at batch 6"):
        onnxperf.predict(Fixed(), torch.ones(3, 4), gpu="l4", batch=6)
    assert len(onnxperf.predict(Fixed(), torch.ones(3, 4), gpu="l4").kernels) == 1


def test_what_an_object_holds_is_an_output() -> None:
    model = model_of(Cached(), torch.ones(2, 4))
    assert [[d.dim_value for d in o.type.tensor_type.shape.dim] for o in model.graph.output] == [[2, 4], [2, 8]]


def test_a_language_model_gives_its_cache_back() -> None:
    llama = tiny("LlamaForCausalLM", "LlamaConfig", **SMALL, vocab_size=100)
    model = model_of(llama, {"input_ids": tokens(2, 8)})
    shapes = [tuple(d.dim_value for d in o.type.tensor_type.shape.dim) for o in model.graph.output]
    assert shapes == [(2, 8, 100)] + [(2, 4, 8, 16)] * 4


def test_an_exported_program_is_taken_as_it_is(of_net: Any) -> None:
    inputs = torch.ones(2, 3, 8, 8)
    program = torch.export.export(Net().eval(), (inputs,))
    weights = {name: (id(t), t.data_ptr()) for name, t in program.state_dict.items()}
    code = program.graph_module.code
    model = model_of(program)
    assert model.graph.name == "Net"
    assert answers(model) == of_net
    assert {name: (id(t), t.data_ptr()) for name, t in program.state_dict.items()} == weights
    assert program.graph_module.code == code
    assert model_of(program, (inputs,)) == model
    with pytest.raises(UsageError, match="this ExportedProgram is made for inputs of 2x3x8x8, not of 4x3x8x8"):
        model_of(program, torch.ones(4, 3, 8, 8))


def test_an_exported_program_keeps_its_open_dimensions() -> None:
    dims = ({0: torch.export.Dim("n")},)
    program = torch.export.export(nn.Linear(4, 5).eval(), (torch.ones(3, 4),), dynamic_shapes=dims)
    with pytest.raises(UsageError, match=r"leaves dimensions open, its inputs are input \?x4: leave examp"):
        model_of(program, torch.ones(9, 4))
    assert onnxperf.predict(program, gpu="l4", batch=9).scenario.inputs == (("input", (9, 4)),)


def test_an_exported_program_without_weights_predicts_the_same(of_net: Any) -> None:
    with torch.device("meta"):
        bare = torch.export.export(Net().eval(), (torch.ones(2, 3, 8, 8),))
    assert answers(bare) == of_net


def test_an_exported_program_that_cant_be_converted_says_why() -> None:
    program = torch.export.export(Bessel(), (torch.ones(3),))
    with pytest.raises(ModelError, match="can't export this ExportedProgram to ONNX: No ONNX function found"):
        model_of(program)


def test_an_onnx_program_is_taken_as_it_is() -> None:
    net, inputs = Net().eval(), torch.ones(2, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(net, (inputs,), dynamo=True, verbose=False, optimize=True)
    before = program.model_proto.SerializeToString(deterministic=True)
    model = model_of(program)
    assert program.model_proto.SerializeToString(deterministic=True) == before
    assert model.graph.name == "Net"
    assert model.ByteSize() < len(before)
    assert answers(model) == answers(program.model_proto)
    with pytest.raises(UsageError, match="this ONNXProgram is made for inputs of 2x3x8x8"):
        model_of(program, {"x": torch.ones(3, 3, 8, 8)})


def test_a_large_model_takes_no_memory_for_its_weights() -> None:
    """A table and a product as of a language model with many words: 8 GB in single precision."""
    pytest.importorskip("resource")
    code = """
import resource, torch
from onnxperf.export import source
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if __import__("sys").platform == "darwin" else 1)
with torch.device("meta"):
    model = torch.nn.Sequential(torch.nn.Embedding(250_000, 4096), torch.nn.Linear(4096, 250_000))
before = peak()
exported, _ = source(model, torch.ones(1, 64, dtype=torch.int64))
print(sum(p.nbytes for p in model.parameters()) // 2**20, (peak() - before) // 1024, exported.ByteSize())
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    weights_MiB, grown_MiB, nbytes = map(int, done.stdout.split())
    assert weights_MiB > 4000
    assert grown_MiB < 500
    assert nbytes < 1_000_000


class Counts(nn.Module):
    """Writes to a buffer whenever it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("runs", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return self.linear(x)


@pytest.mark.parametrize("shape", [(2, 4), (2, 5)])
def test_a_buffer_stays_as_it_was_also_where_the_export_fails(shape: tuple[int, ...]) -> None:
    module = Counts()
    with suppress(onnxperf.Error):
        onnxperf.predict(module, torch.ones(shape), gpu="l4")
    assert module.runs.item() == 0


def test_exports_side_by_side_leave_the_streams() -> None:
    before = sys.stdout, sys.stderr, logging.root.manager.disable
    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(lambda n: onnxperf.predict(nn.Linear(n, n), torch.ones(2, n), gpu="l4"), (8, 16))]
    assert len(found) == 2
    assert (sys.stdout, sys.stderr, logging.root.manager.disable) == before


def test_code_that_wants_to_exit() -> None:
    class Exits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sys.exit(0)

    with pytest.raises(onnxperf.ModelError, match="exit"):
        onnxperf.predict(Exits(), torch.ones(2), gpu="l4")


def test_a_batch_is_exported_as_examples_of_that_batch_are() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 64, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.lstm(x)[0]

    given = onnxperf.predict(Recurrent(), torch.ones(4, 6, 8), gpu="l4")
    asked = onnxperf.predict(Recurrent(), torch.ones(1, 6, 8), gpu="l4", batch=4)
    assert [(k.op, k.seconds) for k in asked.kernels] == [(k.op, k.seconds) for k in given.kernels]
    assert asked.scenario.batch == given.scenario.batch == 4
    loaded = onnxperf.load(Recurrent(), torch.ones(8, 6, 8))
    with pytest.raises(UsageError, match=r"a dynamic batch, or give a framework's to load with batch=N$"):
        onnxperf.predict(loaded, gpu="l4", batch=9)
    assert onnxperf.predict(onnxperf.load(Recurrent(), torch.ones(4, 6, 8), batch=9), gpu="l4").scenario.batch == 9


def test_the_surroundings_of_a_training_loop() -> None:
    model, wrong = (
        nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)),
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(5)),
    )
    alone, state = onnxperf.predict(model, np.zeros((2, 8)), gpu="l4"), torch.random.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = onnxperf.predict(model, torch.zeros(2, 8), gpu="l4")
    assert inside.seconds == alone.seconds
    with pytest.raises(UsageError):
        onnxperf.predict(wrong, torch.zeros(1, 3, 8, 8), gpu="l4")
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_scripted_module_is_told_in_a_sentence() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Linear(8, 8))
    with pytest.raises(ModelError):
        onnxperf.predict(scripted, torch.zeros(2, 8), gpu="l4")


@pytest.mark.parametrize("shape", [(1, 3, 2_000_000, 2_000_000)])
def test_inputs_that_no_memory_holds(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="too large"):
        onnxperf.predict(nn.ReLU(), torch.zeros(shape, device="meta"), gpu="l4")
