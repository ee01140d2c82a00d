"""What is asked of a language model, whichever card it runs on: its runs, its lengths and its requests."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from onnxperf.graph import opened
from onnxperf.ground.names import CACHES, USUAL_ENGINE, WEIGHTS, choice_named
from onnxperf.ground.output import Progress
from onnxperf.language.arrivals import USUAL_SEED, Traffic, check_rate
from onnxperf.language.core import Generation, generation, steps_of, traffic
from onnxperf.language.generation import Lengths
from onnxperf.language.pools import parse_pools
from onnxperf.language.steps import Steps
from onnxperf.running.pipeline import Gpu, Request
from onnxperf.running.terms import TERMS, Keywords, Named, as_terms

#: Arguments of `steps_of`, and of `traffic`, by the names that `llm` has for them.
BUILT = {
    "config": None, "prefill": None, "weights": None, "prune_lm_head": False, "cache": None, "engine": USUAL_ENGINE,
    "draft": None, "accept": None, "draft_tokens": None,
}  # fmt: skip
LENGTHS = {"prompt": 2048, "output": 256, "chunk": None, "cached": 0.0}
ARRIVING = {"qps": "qps", "prompts": "prompt_lengths", "outputs": "output_lengths"}
ARRIVING |= {name: name for name in ("requests", "seed", "concurrency")}
SIZES = ("dims", "shapes", "trip_counts")
#: What a command names that was not read from a file.
UNNAMED = {"model": "decoder.onnx", "config": "config.json", "draft": "draft.json", "prefill": "prefill.onnx"}


class Decoder(Named, Keywords, total=False):
    """The keywords of `llm` that say which model answers which requests, without cards and what limits them."""

    config: str | os.PathLike[str] | Mapping[str, Any] | None
    prefill: Any
    prompt: int
    output: int
    cached: float
    draft: str | os.PathLike[str] | Mapping[str, Any] | None
    accept: float | None
    draft_tokens: int | None
    batch: int | None
    chunk: int | None
    weights: str | None
    cache: str | None
    prune_lm_head: bool
    engine: str
    prompt_lengths: str | None
    output_lengths: str | None
    requests: int | None
    seed: int


class Loaded(Decoder, total=False):
    """The same with how many requests there are."""

    qps: float | None
    concurrency: int | str | None
    pools: str | None


@dataclass(frozen=True, slots=True)
class Decoding:
    """What is asked, with arguments as of `llm`: `built` those of `steps_of`, `arriving` those of `traffic`, `tokens`
    those of `Lengths`; batch: samples, or how many requests are served at a time, None where that was not said; pools:
    instances for prefill and for decode, None where each does both; file: that the model was read from, "" for none.
    """

    model: Any
    request: Request
    built: Mapping[str, Any]
    tokens: Mapping[str, Any]
    arriving: Mapping[str, Any]
    batch: Any = None
    pools: tuple[int, int] | None = None
    file: str = ""

    def command(self, gpu: str, parallel: str, batch: int, qps: float) -> str:
        """The command that answers for one instance on a card, or on several by a plan, with its part of the requests,
        quoted for a shell. What was not read from a file has a name of UNNAMED in it.
        """
        model = [] if self.model is None else [self.file or UNNAMED["model"]]
        plan = ["--parallel", parallel] if parallel else []
        words = [*model, "--gpu", gpu, *plan, *self._options(), "--batch", str(batch), "--qps", f"{qps:.5g}"]
        return shlex.join(["onnxperf", "llm", *words])

    def _options(self) -> Iterator[str]:
        """What was asked beside the defaults, as options."""
        named: dict[str, tuple[Any, Any]] = {name: (self.built[name], usual) for name, usual in BUILT.items()}
        named |= {name: (self.tokens[name], usual) for name, usual in LENGTHS.items()}
        arriving = {name: self.arriving[argument] for argument, name in ARRIVING.items() if argument != "qps"}
        named |= {name: (value, USUAL_SEED if name == "seed" else None) for name, value in arriving.items()}
        for name, (value, usual) in named.items():
            if value != usual:
                yield f"--{name.replace('_', '-')}"
                if value is not True:
                    yield str(value) if isinstance(value, str | int | float | os.PathLike) else UNNAMED[name]
        for name, size in (self.request.dims or {}).items():
            yield from ("--dim", f"{name}={size}")
        for name, shape in (self.request.shapes or {}).items():
            yield from ("--shapes", f"{name}:{'x'.join(map(str, shape))}")
        for name, count in (self.request.trip_counts or {}).items():
            yield from ("--trip-count", f"{name}={count}")
        for name, value in self.request.terms.items():
            if name in ("gpus", "parallel") or value is None or TERMS[name].is_usual(value):
                continue
            yield TERMS[name].flags[0]
            if value is not True:
                yield f"{value / 1e6:.12g}" if name == "clock_Hz" else str(value)

    def on(self, gpu: Gpu, parallel: str | None = None) -> tuple[Steps, Lengths]:
        """The runs on a card, or on several by a plan, and the lengths. Raises UsageError where they can't be."""
        terms = self.request.terms if parallel is None else {**self.request.terms, "parallel": parallel}
        steps, positions = steps_of(self.model, gpu, replace(self.request, terms=terms), **self.built)
        lengths = Lengths(**self.tokens, positions=positions, block=steps.engine.block, limit=steps.limit)
        lengths.check()
        return steps, lengths

    def traffic(self, lengths: Lengths, steps: Steps) -> tuple[Traffic, ...]:
        """The requests to simulate."""
        return traffic(lengths, **self.arriving, engine=steps.engine)

    def generation(self, gpu: Gpu, usual_batch: int | str, tell: Progress | None = None) -> Generation:
        """What `llm` answers on a card. Raises UsageError where it can't."""
        steps, lengths = self.on(gpu)
        weights, cache = self.built["weights"], self.built["cache"]
        batch = usual_batch if self.batch is None else self.batch
        requests = self.traffic(lengths, steps)
        return generation(steps, lengths, batch, weights, requests, tell, cache, self.pools)


def decoding_of(model: Any, asked: Mapping[str, Any]) -> Decoding:
    """What the keywords of `llm` ask, without its card; others are terms."""
    rest = dict(asked)
    file = os.fspath(model) if isinstance(model, str | os.PathLike) else ""
    if rest.get("qps") is not None:
        check_rate(rest["qps"])
    model = model if model is None else opened(model)  # once, for all cards
    built = {name: rest.pop(name, usual) for name, usual in BUILT.items()}
    built |= {"weights": choice_named(built["weights"], WEIGHTS), "cache": choice_named(built["cache"], CACHES)}
    usual = {"seed": USUAL_SEED}
    arriving = {argument: rest.pop(name, usual.get(name)) for argument, name in ARRIVING.items()}
    tokens = {name: rest.pop(name, usual) for name, usual in LENGTHS.items()}
    sizes, batch = {name: rest.pop(name, None) for name in SIZES}, rest.pop("batch", None)
    pools = parse_pools(rest.pop("pools", None))
    return Decoding(model, Request(b"", **sizes, terms=as_terms(rest)), built, tokens, arriving, batch, pools, file)
