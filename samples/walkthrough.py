# %% [markdown]
# # Which card, which batch
# A file to run cell by cell (in VS Code, Jupyter with jupytext, Spyder), or as a whole where the folder `samples` is.
# It takes `pip install onnxperf matplotlib`.

# %%
import matplotlib.pyplot as plt

import onnxperf

MODEL, DIMS = "samples/distilbert-dynamic.onnx", {"sequence": 128}
CARDS = ("t4", "l4", "a10", "a100")
BATCHES = (1, 2, 4, 8, 16, 32)

# %% [markdown]
# ## One prediction
# A time, the range that holds it with 80%, and what the time is spent on.

# %%
p = onnxperf.predict(MODEL, gpu="l4", dims=DIMS)
print(f"{p.seconds * 1e3:.2f} ms ({p.low_seconds * 1e3:.2f} to {p.high_seconds * 1e3:.2f}), {len(p.kernels)} kernels")
for kernel in sorted(p.kernels, key=lambda k: -k.seconds)[:5]:
    print(f"{kernel.seconds * 1e6:8.1f} us  {kernel.op:12} {kernel.bound_by!s:8} {kernel.name}")

# %% [markdown]
# ## Cards and batches
# One prediction for each pair, in half precision; nothing is run.

# %%
found = {
    gpu: [onnxperf.predict(MODEL, gpu=gpu, dims=DIMS, batch=batch, precision="fp16") for batch in BATCHES]
    for gpu in CARDS
}
print("batch " + "".join(f"{gpu:>10}" for gpu in CARDS))
for i, batch in enumerate(BATCHES):
    print(f"{batch:5} " + "".join(f"{found[gpu][i].seconds * 1e3:7.2f} ms" for gpu in CARDS))

# %% [markdown]
# ## Latency against batch
# Flat where starting kernels is the limit: a larger batch costs nothing there.

# %%
figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
for gpu, predictions in found.items():
    (line,) = axes.plot(BATCHES, [p.seconds * 1e3 for p in predictions], marker="o", label=gpu)
    low, high = ([getattr(p, side) * 1e3 for p in predictions] for side in ("low_seconds", "high_seconds"))
    axes.fill_between(BATCHES, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
axes.set_xscale("log", base=2)
axes.set_yscale("log", base=2)
axes.yaxis.set_major_formatter("{x:g}")
axes.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
axes.set(xlabel="batch", ylabel="latency, ms", title="DistilBERT, 128 tokens, FP16; bands hold 80%")
axes.grid(alpha=0.3, which="both")
axes.legend()
figure.savefig("latency-by-batch.png", dpi=120)

# %% [markdown]
# ## What the time goes to
# Kernels by operator, the four that take most by name, at the smallest and the largest batch.


# %%
def by_operator(p: onnxperf.Prediction) -> dict[str, float]:
    """Seconds of kernels by the type of their operator, without its domain."""
    seconds: dict[str, float] = {}
    for kernel in p.kernels:
        name = kernel.op.rpartition("::")[2]
        seconds[name] = seconds.get(name, 0.0) + kernel.seconds
    return seconds


ends = {f"{gpu}, batch {BATCHES[i]}": by_operator(found[gpu][i]) for gpu in CARDS for i in (0, -1)}
total: dict[str, float] = {}
for seconds in ends.values():
    for name, value in seconds.items():
        total[name] = total.get(name, 0.0) + value / sum(seconds.values())
largest = sorted(total, key=lambda name: -total[name])[:4]

figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
left = [0.0] * len(ends)
for name in (*largest, "others"):
    shares = []
    for seconds in ends.values():
        own = seconds.get(name, 0.0) if name != "others" else sum(v for n, v in seconds.items() if n not in largest)
        shares.append(100 * own / sum(seconds.values()))
    axes.barh(list(ends), shares, left=left, label=name)
    left = [a + b for a, b in zip(left, shares, strict=True)]
axes.invert_yaxis()
axes.set(xlabel="share of kernel time, %", xlim=(0, 100), title="DistilBERT, 128 tokens, FP16")
figure.legend(loc="outside lower center", ncols=5)
figure.savefig("operators.png", dpi=120)
