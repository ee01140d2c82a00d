"""Training steps: as many FLOPs as PyTorch counts, memory by what is kept, and what can't be trained."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import onnx.parser
import pytest
from click.testing import CliRunner

from onnxperf import Prediction, UsageError, cli, predict
from onnxperf.passes.tape import BACKWARD, FORWARD, PHASES, phase_of
from tests.estimating import predict_on

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "onnxperf/answer/prediction.schema.json").read_text(encoding="utf-8"))
MLP = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
g (float[32, 512] x, float[512, 1024] w, float[1024] b, float[1024, 100] v) => (float[32, 100] y)
{ h = Gemm(x, w, b) a = Gelu(h) y = MatMul(a, v) }""")
for _name, _shape in (("w", (512, 1024)), ("b", (1024,)), ("v", (1024, 100))):
    _weight = MLP.graph.initializer.add(name=_name, dims=_shape, data_type=1, data_location=1)
    _weight.external_data.add(key="location", value="weights-not-included.bin")
PARAMETERS = 512 * 1024 + 1024 + 1024 * 100


def step(model: Any = MLP, **terms: Any) -> Prediction:
    return predict(model, gpu="a100", **{"runtime": "torch-eager", "mode": "training", **terms})


def matrix_flops(p: Prediction, *phases: str) -> int:
    return sum(k.repeat * k.work.matrix_flops for k in p.run.kernels.rows if k.phase in (phases or PHASES))


def test_a_step_is_forward_backward_and_update() -> None:
    p, inference = step(), predict(MLP, gpu="a100", runtime="torch-eager")
    found = p.training
    assert found and found["optimizer"] == "adam" and found["loss"] is None and inference.training is None
    parts = [found[f"{phase}_seconds"] for phase in PHASES]
    assert all(part > 0 for part in parts) and sum(parts) == pytest.approx(p.seconds)
    forward = 2 * 32 * (512 * 1024 + 1024 * 100)
    assert matrix_flops(inference) == matrix_flops(p, "forward") == forward
    # the input needs no gradient: of the first product only that of the weights is computed
    assert matrix_flops(p, "backward") == 2 * 32 * (512 * 1024 + 2 * 1024 * 100)
    assert (found["gradient_bytes"], found["optimizer_bytes"]) == (4 * PARAMETERS, 8 * PARAMETERS)
    jsonschema.validate(p.to_dict(), SCHEMA)
    assert p.to_dict()["training"] == found and "training" not in inference.to_dict()


def test_the_command_takes_a_training_step(tmp_path: Path) -> None:
    model, target = tmp_path / "mlp.onnx", tmp_path / "step.json"
    model.write_bytes(MLP.SerializeToString())
    terms = ("--runtime", "torch-eager", "--mode", "training", "--loss", "mse", "--optimizer", "sgd", "--recompute")
    out = CliRunner().invoke(cli.cli, ["predict", str(model), "--gpu", "a100", *terms, "--json", str(target)])
    assert out.exit_code == 0 and "training" in out.output
    wanted = step(loss="mse", optimizer="sgd", recompute=True).training
    assert json.loads(target.read_text())["training"] == wanted


def test_an_optimiser_costs_what_it_moves() -> None:
    adam, sgd, none = (step(optimizer=name) for name in ("adam", "sgd", "none"))
    moved = [sum(k.repeat * k.work.bytes for k in p.run.kernels.rows if k.phase == "update") for p in (adam, sgd, none)]
    assert moved == [18 * 4 * PARAMETERS, 3 * 4 * PARAMETERS, 0]
    assert adam.seconds > sgd.seconds > none.seconds and none.training and none.training["update_seconds"] == 0
    large = step(dims={"sequence": 64}, model=ROOT / "samples/gpt2-large.onnx")
    assert large.training and large.training["update_seconds"] < 2 * 18 * 4 * 0.84e9 / large.device.bandwidth_Bps
    assert adam.memory.weights_bytes - sgd.memory.weights_bytes == 8 * PARAMETERS


def test_momentum_is_kept_of_each_parameter() -> None:
    """mul_, add_, add_; before the last, Nesterov's makes a new sum of gradient and momentum."""
    for optimizer, passes in (("momentum", 8), ("nesterov", 11)):
        p = step(optimizer=optimizer)
        moved = sum(k.repeat * k.work.bytes for k in p.run.kernels.rows if k.phase == "update")
        assert moved == passes * 4 * PARAMETERS
        assert p.training and p.training["optimizer_bytes"] == 4 * PARAMETERS
    with pytest.raises(UsageError, match="has no optimizer momentum: it has adam, sgd, none"):
        step(runtime="ort-cuda", optimizer="momentum")


def test_before_release_2_gradients_stay_and_parameters_are_updated_one_by_one() -> None:
    """Each of three parameters has launches of its own, and its gradient is added to zeros in place."""
    today, before = (step(optimizer="nesterov", ort_version=v) for v in (None, "1.12"))
    launches = [[k.repeat for k in p.run.kernels.rows if k.phase == "update"] for p in (today, before)]
    assert launches == [[1] * 4, [3] * 4]
    added = [
        [o.out.size for o in p.run.run_graph.operators if o.name.endswith("#accumulated")] for p in (today, before)
    ]
    assert not added[0] and sum(added[1]) == PARAMETERS
    assert before.seconds > today.seconds
    assert matrix_flops(before) == matrix_flops(today)


@pytest.mark.parametrize(
    ("text", "gradients"),
    [
        # of a Euclidean norm, and of what is placed among other elements
        ("h = MatMul(x, v) y = ReduceL2<keepdims = 1>(h, a)", ["Div", "Mul"]),
        ("h = MatMul(x, v) y = ScatterElements<axis = 1>(z, i, h)", ["GatherElements"]),
        # parts of an axis, and parts that change places
        ("h = MatMul(x, v) p = Slice(h, o, k, a) q = Slice(h, k, n, a) y = Concat<axis = 1>(q, p)", ["torch::roll"]),
    ],
)  # fmt: skip
def test_gradients_are_the_kernels_of_autograd(text: str, gradients: list[str]) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20]>
    g (float[64, 32] x, float[64, 16] z, int64[64, 16] i) => (float y)
    <int64[1] a = {{1}}, int64[1] o = {{0}}, int64[1] k = {{3}}, int64[1] n = {{16}}> {{ {text} }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    weight = model.graph.initializer.add(name="v", dims=(32, 16), data_type=1, data_location=1)
    weight.external_data.add(key="location", value="weights-not-included.bin")
    operators = step(model, optimizer="none").run.run_graph.operators
    backward = [o.type for o in operators if phase_of(o) == BACKWARD and o.place != "free"]
    assert [t for t in backward if t not in ("ConstantOfShape", "MatMul")] == gradients


@pytest.mark.parametrize("runtime", ["torch-eager", "ort-cuda"])
def test_gradients_of_several_batches_are_added_up(runtime: str) -> None:
    one, four = (step(runtime=runtime, accumulate=n) for n in (1, 4))
    assert matrix_flops(four) == 4 * matrix_flops(one)
    added = [k.repeat * k.work.bytes for k in four.run.kernels.rows if k.name.endswith("#accumulated")]
    moved = 3 * 4 * PARAMETERS  # the buffer read and written, the gradient read
    assert sum(added) == (4 if runtime == "ort-cuda" else 3) * moved
    assert one.training and four.training and four.training["accumulate"] == 4
    assert four.training["gradient_bytes"] == one.training["gradient_bytes"] == 4 * PARAMETERS
    assert four.training["update_seconds"] == pytest.approx(one.training["update_seconds"], rel=0.1)
    assert four.throughput_per_second == pytest.approx(4 * 32 / four.seconds)


def test_losses_have_kernels_of_their_own() -> None:
    for loss in ("cross-entropy", "mse"):
        p = step(loss=loss)
        assert len(p.kernels) > len(step().kernels) and p.training and p.training["loss"] == loss


def sizes(name: str, batch: int, length: int = 128) -> dict[str, Any]:
    """The batch of a sample, and a length where it leaves one open."""
    declared = onnx.load(ROOT / f"samples/{name}.onnx", load_external_data=False).graph.input
    names = {d.dim_param for i in declared for d in i.type.tensor_type.shape.dim if d.dim_param}
    return {"dims": {d: batch if d == "batch" else length for d in names}} if names else {"batch": batch}


def sample(name: str, batch: int, **terms: Any) -> Prediction:
    model = ROOT / f"samples/{name}.onnx"
    return predict(model, gpu="a100", runtime="torch-eager", mode="training", **sizes(name, batch), **terms)


def feed_forward(norm: bool = True, dropout: float = 0.0) -> Any:
    """Linear, gelu, Linear, the sum with the input, and a norm of it."""
    import torch

    class FeedForward(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 1024)
            self.norm = torch.nn.LayerNorm(1024) if norm else torch.nn.Identity()
            self.drop = torch.nn.Dropout(dropout)

        def forward(self, x: Any) -> Any:
            return self.norm(self.drop(self.down(torch.nn.functional.gelu(self.up(x)))) + x)

    return FeedForward()


def check_types(p: Prediction) -> None:
    """Under autocast a backward product runs in the type that its forward product ran in; parameters keep float32."""
    products = [(phase_of(o), {t.dtype for t in (*o.present[:2], o.out)}) for k in p.run.kernels.rows
                if (o := k.operator) is not None and k.work.matrix_flops]  # fmt: skip
    assert {phase for phase, _ in products} == {FORWARD, BACKWARD}
    assert all(dtypes == {"float16"} for _, dtypes in products)
    gradients = [t for t in p.run.run_graph.outputs if t.name not in p.run.typed_graph.output_names]
    assert gradients and {t.dtype for t in gradients} == {"float32"}


@pytest.mark.parametrize(("name", "batch"), [
    ("distilbert-base", 2), ("gpt2-dynamic", 2), ("t5-small", 2), ("llama-3.2-1b", 1), ("vit-base-16", 2),
    ("swin-t", 1), ("convnext-t", 1), ("resnet50", 1), ("mobilenetv2", 1), ("unet", 1), ("lstm", 4),
])  # fmt: skip
def test_autocast_differentiates_in_the_types_of_the_forward_pass(name: str, batch: int) -> None:
    check_types(sample(name, batch, precision="amp", loss="cross-entropy"))


@pytest.mark.parametrize("loss", ["mse", None])
@pytest.mark.parametrize(("name", "batch"), [("distilbert-base", 2), ("resnet50", 1), ("unet", 1), ("lstm", 4)])
def test_nor_does_another_loss_change_these_types(name: str, batch: int, loss: str | None) -> None:
    check_types(sample(name, batch, precision="amp", loss=loss))


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "dropout"), [(True, 0.0), (False, 0.0), (True, 0.1)])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_gradient_behind_a_sum_in_float32_is_cast(norm: bool, dropout: float, recompute: bool) -> None:
    import torch

    p = step(feed_forward(norm, dropout), example_inputs=torch.zeros(4, 8, 1024), precision="amp", recompute=recompute)
    check_types(p)


@pytest.mark.slow
def test_products_have_the_types_of_pytorch_under_autocast() -> None:
    """As many products in each type, forward and backward, as PyTorch runs under its CPU's autocast to float16."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    found: Counter[tuple[str, str]] = Counter()

    class Products(TorchDispatchMode):
        phase = FORWARD

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket.__name__ in ("mm", "addmm", "bmm"):
                read = {str(x.dtype).removeprefix("torch.") for x in args if isinstance(x, torch.Tensor)}
                found[self.phase, " ".join(sorted(read))] += 1
            return func(*args, **(kwargs or {}))

    with FakeTensorMode(), Products() as products:
        y = feed_forward()
        with torch.autocast("cpu", torch.float16):
            loss = torch.nn.functional.cross_entropy(y(torch.zeros(4, 8, 1024)).flatten(0, 1), torch.zeros(32).long())
        products.phase = BACKWARD
        loss.backward()
    p = step(feed_forward(), example_inputs=torch.zeros(4, 8, 1024), precision="amp", loss="cross-entropy")
    own = Counter((phase_of(o), " ".join(sorted({t.dtype for t in o.present}))) for k in p.run.kernels.rows
                  if (o := k.operator) is not None and k.work.matrix_flops)  # fmt: skip
    assert own == found == {(FORWARD, "float16"): 2, (BACKWARD, "float16"): 3}


def test_a_loss_under_autocast_is_in_float32() -> None:
    """Logarithms are taken in float16 and then cast, as their gradient is before; squares are of what was cast."""

    def types(loss: str, *ops: str) -> list[tuple[str, str]]:
        made = [k.operator for k in step(loss=loss, precision="amp").run.kernels.rows if k.op in ops]
        return [(o.present[0].dtype, o.out.dtype) for o in made if o is not None]

    entropy = types("cross-entropy", "LogSoftmax", "com.microsoft::LogSoftmaxGrad")
    assert entropy == [("float16", "float16"), ("float16", "float16")]
    assert types("cross-entropy", "NegativeLogLikelihoodLoss") == [("float32", "float32")]
    assert types("mse", "Sub", "torch::mse_loss_backward") == [("float32", "float32")] * 2


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch"), [
    ("distilbert-base", 1), ("distilbert-base", 16), ("gpt2-dynamic", 4), ("t5-small", 8), ("vit-base-16", 16),
    ("resnet50", 16), ("convnext-t", 16), ("lstm", 16),
])  # fmt: skip
def test_autocast_is_slower_than_tf32_by_no_more_than_its_casts(name: str, batch: int) -> None:
    """Of kernels on cards with tensor cores: casts are launched too, which a step of small kernels waits for, and the
    scaler reads and writes all gradients, as each pass of the optimiser does.

    Not of convolutions and recurrent layers of one sample, which are predicted to take longer in float16 on some cards,
    nor of networks of large images, which are turned element by element: a VGG-16 took 8.8 ms on an H200, 8.0 in TF32.
    """
    cards = ("t4", "v100", "a100", "l4", "b200")
    terms = {"runtime": "torch-eager", "mode": "training", **sizes(name, batch)}
    each = (predict_on(cards, ROOT / f"samples/{name}.onnx", **terms, precision=p) for p in ("amp", "tf32"))
    for gpu, amp, tf32 in zip(cards, *each, strict=True):
        casts = sum(k.seconds for k in amp.kernels if k.op == "Cast")
        scaler = max(k.seconds for k in amp.kernels if k.op == "torch::foreach")
        assert casts > 0 and amp.sum_seconds <= tf32.sum_seconds + casts + scaler, gpu


@pytest.mark.slow
def test_recomputing_saves_memory_and_takes_time() -> None:
    model = ROOT / "samples/gpt2-dynamic.onnx"
    kept, again = (step(model, dims={"batch": 8, "sequence": 512}, recompute=r) for r in (False, True))
    assert again.memory.activations_bytes < 0.5 * kept.memory.activations_bytes
    assert kept.seconds < again.seconds < 1.5 * kept.seconds
    extra = matrix_flops(again) - matrix_flops(kept)
    assert 0.6 < extra / matrix_flops(kept, "forward") <= 1.0  # the last segment, with the head, is kept


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "bert", "gpt2"])
def test_as_many_flops_as_pytorch_counts(name: str) -> None:
    """Of the forward and the backward pass, by torch.utils.flop_counter, with attention written out."""
    import torch
    import transformers as hf
    from torch.utils.flop_counter import FlopCounterMode

    own = {"vocab_size": 500, "attn_implementation": "eager"}
    ids = {"input_ids": torch.zeros(2, 32, dtype=torch.int64)}
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    gpt2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "use_cache": False, "bos_token_id": 0, "eos_token_id": 0}
    image = {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 2], "num_labels": 10}
    module, inputs = {
        "bert": lambda: (hf.BertForSequenceClassification(hf.BertConfig(**sizes, **own)), ids),
        "gpt2": lambda: (hf.GPT2LMHeadModel(hf.GPT2Config(**gpt2, **own)), ids),
        "resnet": lambda: (
            hf.ResNetForImageClassification(hf.ResNetConfig(**image)), {"pixel_values": torch.zeros(2, 3, 64, 64)}
        ),
    }[name]()  # fmt: skip
    with FlopCounterMode(display=False) as counter:
        module(**inputs).logits.sum().backward()
    p = step(module, example_inputs=inputs)
    assert matrix_flops(p) == pytest.approx(counter.get_total_flops(), rel=0.01)


@pytest.mark.slow
def test_dropout_is_that_of_train_mode() -> None:
    import torch

    x = torch.zeros(4, 64)
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 8)).eval()
    p = step(module, example_inputs=x)
    masked = [k for k in p.kernels if k.op == "torch::dropout"]
    assert [(k.bytes_read, k.bytes_written) for k in masked] == [(4 * 4 * 64, 5 * 4 * 64)]  # a mask of one byte each
    backward = [k for k in p.kernels if k.op == "torch::dropout_backward"]  # one kernel: nobody differentiates it again
    assert [(k.bytes_read, k.bytes_written) for k in backward] == [(5 * 4 * 64, 4 * 4 * 64)]
    assert not [n for n in p.warnings if n.code == "no-dropout"]
    assert [n.code for n in step().warnings].count("no-dropout") == 1
    assert not module.training and not module[1].training
    assert "torch::dropout" not in {k.op for k in predict(module, x, gpu="a100", runtime="torch-eager").kernels}


def trained(text: str, **weights: tuple[int, ...]) -> set[str]:
    """The stored tensors of a graph that a step trains."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> g {text}')
    for name, dims in weights.items():
        weight = model.graph.initializer.add(name=name, dims=dims, data_type=1, data_location=1)
        weight.external_data.add(key="location", value="weights-not-included.bin")
    p = step(model, optimizer="none")
    return {t.name for t in p.run.typed_graph.stored() if t.size in {g.size for g in p.run.run_graph.outputs}}


@pytest.mark.parametrize(("mask", "is_trained"), [((1, 1, 8, 8), False), ((8, 8), False), ((1, 4, 8, 8), True)])
def test_a_mask_that_all_heads_share_is_not_trained(mask: tuple[int, ...], is_trained: bool) -> None:
    """A bias of relative positions is, which has an axis of heads."""
    names = trained("(float[2, 4, 8, 16] x) => (float[2, 4, 8, 8] y) { s = MatMul(x, w) a = Add(s, m) y = Softmax(a) }",
                    w=(16, 8), m=mask)  # fmt: skip
    assert names == {"w", "m"} if is_trained else names == {"w"}


@pytest.mark.parametrize(("factor", "is_trained"), [((1, 1, 8, 16), False), ((16,), True), ((4, 1, 1), True)])
def test_a_table_of_rotary_embeddings_is_not_trained(factor: tuple[int, ...], is_trained: bool) -> None:
    """A layer's scale is, which has one number for each feature or channel."""
    names = trained("(float[2, 4, 8, 16] x) => (float[2, 4, 8, 32] y) { r = Mul(x, f) y = MatMul(r, w) }",
                    w=(16, 32), f=factor)  # fmt: skip
    assert names == {"w", "f"} if is_trained else names == {"w"}


def test_a_recurrent_layer_takes_its_weights_as_they_are() -> None:
    """PyTorch's exporter cuts and joins them in ONNX's order of gates, which PyTorch does not do in a run."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
    g (float[5, 2, 8] x) => (float[5, 1, 2, 8] y) <int64[1] z = {0}, int64[1] h = {16}, int64[1] e = {32}>
    { a = Slice(w, z, h) b = Slice(w, h, e) j = Concat<axis = 0>(b, a) q = Unsqueeze(j, z)
      y = LSTM<hidden_size = 8>(x, q, r) }""")
    for name, dims in (("w", (32, 8)), ("r", (1, 32, 8))):
        weight = model.graph.initializer.add(name=name, dims=dims, data_type=1, data_location=1)
        weight.external_data.add(key="location", value="weights-not-included.bin")
    p = step(model, optimizer="sgd")
    operators = [o for o in p.run.run_graph.operators if phase_of(o) == FORWARD]
    assert [o.type for o in operators] == ["LSTM"]
    assert [(t.name, t.shape) for t in operators[0].present[1:]] == [("w", (1, 32, 8)), ("r", (1, 32, 8))]
    assert p.training and p.training["gradient_bytes"] == 4 * 2 * 32 * 8


def test_what_a_gradient_is_computed_from_is_kept_until_its_last_kernel() -> None:
    """Softmax multiplies gradient and result first; the gradient stays until the second kernel is done."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
    g (float[64, 1024] x) => (float[64, 1024] y) { h = MatMul(x, w) s = Softmax(h) t = Sigmoid(s) y = Tanh(t) }""")
    weight = model.graph.initializer.add(name="w", dims=(1024, 1024), data_type=1, data_location=1)
    weight.external_data.add(key="location", value="weights-not-included.bin")
    p = step(model)
    operators, each = p.run.run_graph.operators, 64 * 1024 * 4
    at = next(i for i, o in enumerate(operators) if o.type == "com.microsoft::SoftmaxGrad")
    # x, y, the softmax; the gradient, its product with the softmax, and what the kernel writes
    assert p.run.footprint.alive[at + 1] == 6 * each


def test_adam_makes_tensors_of_the_size_of_the_parameters() -> None:
    """The roots of the second moments, beside parameters, gradients and both moments; not in one kernel for all."""
    peak = {name: step(optimizer=name).run.footprint.alive[-1] for name in ("adam", "sgd")}
    assert peak["adam"] - peak["sgd"] == pytest.approx(4 * PARAMETERS, rel=0.01)


@pytest.mark.parametrize(("terms", "why"), [
    ({"runtime": "tensorrt"}, "tensorrt does not train: give runtime torch-eager, torch-compile or ort-cuda"),
    ({"optimizer": "lion"}, "unknown optimizer 'lion'"),
    ({"loss": "hinge"}, "unknown loss 'hinge'"),
    ({"mode": "inference", "optimizer": "sgd"}, "need mode training"),
    ({"mode": "sleeping"}, "unknown mode 'sleeping'"),
    ({"precision": "int8"}, "training in int8 is not predicted"),
    ({"include_transfers": True}, "copies are not predicted for a training step"),
    ({"accumulate": 0}, "accumulate must be a whole number from 1"),
    ({"mode": "inference", "accumulate": 2}, "need mode training"),
])  # fmt: skip
def test_terms_that_do_not_go_together(terms: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        step(**terms)


def test_what_has_no_gradient_is_named() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]> g (float[8, 8, 8] x) => (float[8] y)
    { w = Constant <value = float[8] {1, 2, 3, 4, 5, 6, 7, 8}> () h = Mul(x, w) y = Det(h) }""")
    with pytest.raises(UsageError, match="no trainable parameters"):
        step(model)
    weight = model.graph.initializer.add(name="v", dims=(8, 8), data_type=1, data_location=1)
    weight.external_data.add(key="location", value="weights-not-included.bin")
    model.graph.node[1].op_type, model.graph.node[1].input[1] = "MatMul", "v"
    with pytest.raises(UsageError, match=r"no gradient is defined for Det \(1: "):
        step(model)


def test_a_form_without_a_gradient_is_named() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
    g (float[64] x) => (float[8] y) { y = MatMul(x, v) }""")
    weight = model.graph.initializer.add(name="v", dims=(64, 8), data_type=1, data_location=1)
    weight.external_data.add(key="location", value="weights-not-included.bin")
    with pytest.raises(UsageError, match=r"no gradient is defined for node '.*' \(MatMul\) as it is used here"):
        step(model)
