"""A language model's report as one HTML file: how it generates, how requests are served, what steps are spent on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onnxperf.decide.pace import FIRST, TOKEN
from onnxperf.ground.errors import printable
from onnxperf.ground.tables import number, size
from onnxperf.ground.version import VERSION
from onnxperf.language.core import Generation
from onnxperf.language.generation import Batch
from onnxperf.language.serving import PERCENTILES, Service
from onnxperf.language.spent import Step
from onnxperf.language.steps import Seconds
from onnxperf.views.html import filled
from onnxperf.views.html_data import digits, run_data, sentence, short_name
from onnxperf.views.llm import assumed, closed_loop, served, types_of
from onnxperf.views.llm_trace import steps_shown


def llm_html(g: Generation) -> str:
    """The page of a generation. It shows what strangers wrote as text alone, as that of a prediction does."""
    return filled("llm.html", "llm.js", page_data(g))


def page_data(g: Generation) -> dict[str, Any]:
    """Everything that the page shows. Times in seconds, sizes in bytes, of numbers the digits that can be seen."""
    first = g.batches[0]
    services = g.curve or ((g.service,) if g.service is not None else ())
    return {
        "version": VERSION, "head": _head(g), "largest": g.largest_batch, "batches": [_batch(b) for b in g.batches],
        "requests": [_service(s, closed_loop(s) if g.curve else served(s)) for s in services],
        "steps": [_step(step) for step in steps_shown(g)],
        "memory": {
            "batch": first.batch, "held": first.needed_bytes, "capacity": first.capacity_bytes, "fits": first.fits,
            "token": g.cache_bytes_per_token, "parts": _parts(g, first),
        },
        "notes": [sentence(note) for note in (f"accuracy: {g.accuracy}", *g.notes, *assumed(g))],
    }  # fmt: skip


def _head(g: Generation) -> dict[str, Any]:
    """The answer: of the first batch, or of the first service that was simulated."""
    s, b, lengths = g.service, g.batches[0], g.lengths
    chunk = f" in chunks of {lengths.chunk:,}" if lengths.chunk else ""
    chunk += f", {lengths.cached_tokens:,} of it cached" if lengths.cached else ""
    asked = (
        g.model, g.gpu, g.plan, f"pools {g.pools.prefill:,}:{g.pools.decode:,}" if g.pools else "",
        f"draft {g.draft.model}" if g.draft else "", g.runner, types_of(g), f"prompt {lengths.prompt:,}{chunk}",
        f"output {lengths.output:,}", f"batch {b.batch:,}" if s is None else "",
    )  # fmt: skip
    times = (b.first, b.token) if s is None else (s.times[FIRST].mean, s.times[TOKEN].mean)
    of = f" at batch {b.batch:,}" if s is None else " in the mean"
    rate = b.tokens_per_second if s is None else s.tokens_per_second
    return {
        "asked": [short_name(x) for x in asked if x], "first": _time(times[0]), "token": _time(times[1]), "of": of,
        "rate": f"{number(rate, 4)} tokens/s", "memory": f"{size(b.needed_bytes)} of {size(b.capacity_bytes)}",
        "misfit": "" if b.fits or s is not None else f"DOES NOT FIT at batch {b.batch:,}",
    }  # fmt: skip


def _time(s: Seconds) -> dict[str, float]:
    return {"seconds": digits(s.seconds), "low": digits(s.low_seconds), "high": digits(s.high_seconds)}


def _batch(b: Batch) -> dict[str, Any]:
    return {
        "batch": b.batch, "first": _time(b.first), "token": _time(b.token), "rate": digits(b.tokens_per_second),
        "memory": b.needed_bytes, "context": b.longest_context, "fits": b.fits,
    }  # fmt: skip


def _service(s: Service, says: str) -> dict[str, Any]:
    """How one traffic was served: every time, and the figures of a point of the curve."""
    first, token = (s.times[name] for name in (FIRST, TOKEN))
    spreads = {name.replace("_", " "): (time.mean, *time.at.values()) for name, time in s.times.items()}
    return {
        "says": sentence(f"{says}."), "name": f"{s.traffic.concurrency:,}",
        "heads": ["mean", *(f"p{p}" for p in PERCENTILES)],
        "times": [[name, *map(_time, each)] for name, each in spreads.items()],
        "first": _time(first.mean), "token": _time(token.mean),
        "first99": digits(first.at[99].seconds), "token99": digits(token.at[99].seconds),
        "user": digits(s.tokens_per_second_per_user), "gpu": digits(s.tokens_per_second_per_gpu),
    }  # fmt: skip


def _step(step: Step) -> dict[str, Any]:
    host = f"host of {step.engine.name} and gaps" if step.own_host else "host and gaps"
    named = {"name": step.name, "title": step.title, "rest": digits(step.rest), "host": host}
    return {**named, **run_data(step.prediction)}


def _parts(g: Generation, b: Batch) -> Iterable[tuple[str, int]]:
    """What the memory of a batch is taken by."""
    rest = b.needed_bytes - g.weights_bytes - b.cache_bytes
    parts = (("weights", g.weights_bytes), ("KV cache", b.cache_bytes), ("activations, workspace, CUDA context", rest))
    return [(printable(name), taken) for name, taken in parts if taken > 0]
