"""`llm`: how a language model generates on a card, from its graph or from its config.json."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from onnxperf.answer.accuracy import Accuracy
from onnxperf.export.decoder import decoder
from onnxperf.export.decoder_config import ATTENDING, DecoderConfig, config_of, read_config
from onnxperf.export.decoder_quantised import FP8, Stored
from onnxperf.graph import opened
from onnxperf.ground.codec import Document, plain
from onnxperf.ground.door import DOOR
from onnxperf.ground.errors import UsageError, counted, speaking_of_arguments
from onnxperf.ground.lists import batches_of, parse_batches, sizes_of
from onnxperf.ground.names import CACHES, USUAL_ENGINE, WEIGHTS, choice_named
from onnxperf.ground.output import Progress, written
from onnxperf.ground.tables import duration, number, size
from onnxperf.ground.version import VERSION
from onnxperf.language.arrivals import (
    MAX_CONCURRENCY,
    ROUNDS,
    RUNNING,
    USUAL_REQUESTS,
    USUAL_SEED,
    Traffic,
    around,
    check_rate,
)
from onnxperf.language.engines import ENGINES, Engine, runner
from onnxperf.language.generation import Batch, Lengths, by_batch, check_share, in_pools, largest_batch
from onnxperf.language.pools import Pools, balanced, parse_pools, pools_of
from onnxperf.language.serving import Service, serve
from onnxperf.language.steps import Draft, Steps
from onnxperf.latency.intervals import COVERAGE
from onnxperf.passes.plan import parse_plan, plan_text
from onnxperf.passes.precision import lacks_unit
from onnxperf.running.largest import MAX_BATCH
from onnxperf.running.pipeline import Gpu, Request, find
from onnxperf.running.terms import TERMS, Keywords, as_terms
from op_models import BITS

#: The type of the graph that is made of a configuration, by precision; others keep that of the configuration.
BUILT_AS = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
ASSUMED = ("all sequences of a batch have equal lengths and start together; sampling of tokens is not counted",)
#: Terms that an engine decides, and precisions in which it serves.
DECIDED = ("runtime", "opt_level", "ort_version", "ort_transformers", "compile_mode", "streams", "cuda_graph")
SERVED_IN = ("keep", "bf16", "fp16", "fp8")
WEIGHTS_ONLY = {"int4": Stored("int4", 4, block=128, scale_bits=20), "int8": Stored("int8", 8)}
#: Tokens that a draft proposes in a step, and at most.
USUAL_DRAFT, MOST_DRAFT = 4, 64
#: Layers that repeat, at most, and how many more of them a model must have to be predicted from few.
MOST_PERIOD, LEAST_PERIODS = 8, 3
ENGINE = (
    "{}: kernels as under ONNX Runtime, but GEMMs with the same input are merged, and activations and norms of heads"
    " are fused; onnxperf/language/engines.py has what is assumed of its scheduler, all-reduce and host"
)
#: Of a configuration with weights that are quantised in a way that the graph does not have.
STORED = "the configuration stores weights as {}: here they are {}; set --weights or --precision fp8"
#: Of a configuration that does not say a type, or how long contexts may be.
UNTYPED = "the configuration has no torch_dtype: {} is taken, and --precision says another"
UNLIMITED = "the configuration has no max_position_embeddings: up to {:,} tokens are taken for a {} model"
#: Of a configuration in float32, in which weights are published and not served.
IN_HALF = "the type of the configuration is float32: it is served in {}, as engines do; --precision fp32 keeps float32"
#: Of a configuration with layers that see the last positions alone.
WINDOWS = (
    "{} of {} layers see the last {:,} positions only, and their keys and values are kept whole, as ONNX Runtime GenAI"
    " does: an engine that drops the rest keeps {} for a sample of {:,} positions instead of {}"
)
#: Of a draft.
DRAFTED = (
    "speculative decoding by a formula on single runs, not measured: a decode step is {} of the draft and one of the"
    " model with {} tokens of each sample, and gives (1 - a^{}) / (1 - a) = {:.3g} tokens on average where each token"
    " that is proposed is accepted with probability a = {:g}, independently (Leviathan et al. 2023, arXiv:2211.17192);"
    " the draft runs the prompt as well, its weights and cache are in the memory, and choosing tokens takes no time;"
    " tokens come several at a time, and inter-token latency is between those times"
)
SLOWER = "a token takes longer with the draft than without it at {}"
#: Of two pools.
POOLED = (
    "prefill and decode on instances of their own ({}), by a formula on the same runs, not measured (as Zhong et al."
    " 2024, arXiv:2401.09670): the first token comes from the prefill; the cache of a prompt, {} on each GPU, then goes"
    " to a decode instance, by assumption over {} at {} GB/s a GPU, in {}, one after the other and beside the runs;"
    " this, and waiting for room there, is in the time per output token"
)
BALANCE = "with {} sequences in each decode instance{}, {} would balance the pools: neither would wait for the other"
#: Of a prompt that is in part in a prefix cache.
CACHED = (
    "{:,} of {:,} tokens of a prompt have their keys and values in the prefix cache ({}): by assumption,"
    " they take no run, what comes behind them attends to them, and each request holds them itself, as it does earlier"
    " turns of its own; were they one prefix that all share, batch {:,} would need {} less"
)
#: Of a configuration whose head is not pruned.
EVERY_POSITION = (
    "prefill computes logits of every position, as the graph of GenAI's model builder does; with --prune-lm-head only"
    " of the last one, as serving engines do"
)
#: Of a configuration with latent attention, and what was measured of it: under ONNX Runtime, under serving engines, and
#: under these with sparse attention.
LATENT = (
    "latent attention (MLA) {}: it is predicted as fused attention whose heads share keys of {} elements, the first {}"
    " of them values"
)
UNVALIDATED = "is not validated under ONNX Runtime, which has no kernel for it"
IN_MODELS = (
    "was measured in whole models only, 82 closed loops of DeepSeek-V3, DeepSeek-R1 and Kimi-K2.5 on H200, of which the"
    " time per output token is 11% off in the median, that to the first 47%"
)
NOT_SPARSE = "was not measured with sparse attention (DSA)"

#: Of a configuration with sparse attention.
SPARSE = (
    "sparse attention (DSA) is not validated: each token attends to {:,} keys at most, chosen by one kernel whose"
    " scores stay in it, and a prompt attends to the latent cache as further tokens do"
)
#: Of a configuration with layers that have no keys and values of their own.
SHARED = (
    "{} of {} layers attend to the keys and values of another, for which ONNX Runtime has no kernel: each is predicted"
    " as attention that writes nothing"
)
#: Of a configuration with layers of linear attention.
STATES = (
    "linear attention and state spaces, {} of {} layers, are not validated: each is predicted as one kernel, of a"
    " prompt as products of chunks of 64 tokens, of a step as reading and writing its state, {} a sample in all, in"
    " float32"
)


@dataclass(frozen=True, slots=True)
class Speculator(Document):
    """What proposes tokens: a model, how likely each of its tokens is accepted, how many it proposes in a step, the
    tokens that a step then gives on average, and its bytes on one GPU.
    """

    model: str
    accept: float
    tokens: int
    tokens_per_step: float
    weights_bytes: int
    cache_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class Generation(Document):
    """How a language model generates on a card.

    engine: what runs it; plan: by which several GPUs divide the work, "" for one; bytes are of the one that holds most,
    batches of all. draft: what proposes tokens, None without; its bytes are not in weights_bytes and
    cache_bytes_per_token, and in those of `batches`; pools: of instances for prefill and for decode, each of the plan.
    weights, cache: the types in which weights of products, and keys and values, are kept, None for that of the
    activations. weights_bytes: in memory; cache_bytes_per_token: keys and values of one token of one sample;
    capacity_bytes: what the driver offers; largest_batch: that fits with these lengths, 0 where none does; service: how
    requests that arrive are served, where that was asked for, and `curve` the same for each of several concurrencies,
    of which `service` is then the first; accuracy: whether generation like it was measured, under this engine, on this
    card; notes: what was assumed.
    """

    ROWS = "batches"

    model: str
    gpu: str
    runtime: str
    precision: str
    weights: str | None
    cache: str | None
    plan: str
    engine: str
    lengths: Lengths
    weights_bytes: int
    cache_bytes_per_token: int
    capacity_bytes: int
    largest_batch: int
    batches: tuple[Batch, ...]
    accuracy: Accuracy
    service: Service | None = None
    curve: tuple[Service, ...] = ()
    draft: Speculator | None = None
    pools: Pools | None = None
    notes: tuple[str, ...] = ASSUMED
    steps: Steps | None = field(default=None, repr=False, compare=False)

    @property
    def runner(self) -> str:
        """What runs it: the engine, or a runtime by itself."""
        return runner(self.engine, self.runtime)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """A page that shows it, with what a prefill and a decode step are spent on; with a path also written there, as
        `--html` does.
        """
        return written(DOOR["llm_html"](self), path)

    def to_trace(self, path: str | os.PathLike[str] | None = None) -> str:
        """A prefill and a decode step on a timeline for ui.perfetto.dev, as JSON; with a path also written there, as
        `--trace` does.
        """
        return written(DOOR["llm_trace"](self), path)

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data; times in seconds, sizes in bytes."""
        return {
            "onnxperf_version": VERSION,
            **plain(self, "model", "gpu", "engine", "runtime", "precision", "weights", "cache"), "parallel": self.plan,
            **plain(self.lengths, "prompt", "output", "chunk", "cached", "cached_tokens"), "interval": COVERAGE,
            **plain(self, "weights_bytes", "cache_bytes_per_token", "capacity_bytes", "largest_batch", "batches"),
            **plain(self, "service", "curve", "draft", "pools", "accuracy", "notes"),
        }  # fmt: skip


def llm(
    model: Any = None, *, gpu: Gpu, config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    prefill: Any = None, prompt: int = 2048, output: int = 256, batch: int | Sequence[int] | str | None = None,
    chunk: int | None = None, weights: str | None = None, cache: str | None = None, prune_lm_head: bool = False,
    qps: float | None = None, concurrency: int | Sequence[int] | str | None = None, prompt_lengths: str | None = None,
    output_lengths: str | None = None, requests: int | None = None, seed: int = USUAL_SEED,
    dims: Mapping[str, int] | None = None, shapes: Mapping[str, Sequence[int]] | None = None,
    trip_counts: Mapping[str, int] | None = None,
    engine: str = USUAL_ENGINE, cached: float = 0.0,
    draft: str | os.PathLike[str] | Mapping[str, Any] | None = None, accept: float | None = None,
    draft_tokens: int | None = None, pools: str | None = None, **terms: Unpack[Keywords],
) -> Generation:  # fmt: skip
    """Predict how a language model generates: first token, further tokens, throughput and memory for each batch, and
    how it serves requests that arrive over time.

    model: a decoder with a cache, a file, its bytes or an onnx.ModelProto, whose lengths are open; prefill: the one
    that takes the prompt, where `model` takes one token only. config: instead of both, a config.json of Hugging Face,
    or what it holds: the graph is then made as ONNX Runtime GenAI's builder does, with weights of products in
    `weights`, int4 or int8, keys and values kept in `cache`, fp8 or int8, and logits of the last position alone with
    `prune_lm_head`.
    prompt, output: tokens; chunk: tokens of the prompt in one run; batch: one or several, also as "1..64", 1 by
    default.
    qps: with it, simulate that many requests a second, `requests` in all, drawn by `seed`, with lengths such as "2048",
    "uniform:100:2000" or "lognormal:2048:0.5" (median, standard deviation of the logarithm), by default prompt and
    output; the largest batch, 256 by default, is how many run at a time, and chunk the new tokens of an iteration, by
    default the engine's own (2048 of ort-genai).
    concurrency: instead of qps, so many requests at all times, each replaced as it ends, `requests` in all, by default
    10 for each; several, also as "1..256", give a curve. Outputs then vary by 3% around output by default, but
    under sglang: see `traffic`.
    draft: with config, the config.json of a small model that proposes draft_tokens tokens in a step, 4 by default, each
    of which the model accepts with probability `accept` (speculative decoding).
    pools: instances for prefill and for decode, such as "1:2", each of the GPUs of `parallel`: the cache moves between.
    cached: the share of each prompt whose keys and values a prefix cache has, in whole blocks of the engine's cache.
    engine: with config, the serving engine that runs it, vllm, sglang or trtllm, with its scheduler, all-reduce, fused
    kernels and host, and weights in the format that the configuration says; precision "fp8" then quantises products.
    dims, shapes, trip_counts and terms: as of `predict`; batch and lengths decide the shapes of ids, positions, masks
    and caches.

    Raises onnxperf.Error: UsageError where the request is wrong, ModelError where the model can't be used.
    """
    with speaking_of_arguments():
        if qps is not None:
            check_rate(qps)
        weights, cache = choice_named(weights, WEIGHTS), choice_named(cache, CACHES)
        steps, positions = steps_of(
            model, gpu, Request(b"", dims=dims, shapes=shapes, trip_counts=trip_counts, terms=as_terms(terms)), config,
            prefill, weights, prune_lm_head, cache, engine, draft, accept, draft_tokens,
        )  # fmt: skip
        lengths = Lengths(prompt, output, chunk, positions, cached, steps.engine.block, steps.limit)
        return generation(
            steps,
            lengths,
            (1 if qps is None else RUNNING) if batch is None else batch,
            weights,
            traffic(lengths, qps, prompt_lengths, output_lengths, requests, seed, concurrency, steps.engine),
            cache=cache,
            sizes=parse_pools(pools),
        )


def traffic(
    lengths: Lengths, qps: float | None, prompts: str | None, outputs: str | None, requests: int | None, seed: int,
    concurrency: int | Sequence[int] | str | None = None, engine: Engine = ENGINES[USUAL_ENGINE],
) -> tuple[Traffic, ...]:  # fmt: skip
    """The requests to simulate, of these lengths by default, for each concurrency; none without a rate or one.

    In a closed loop outputs vary by default where prompts share iterations with decode steps, for there the moments at
    which requests arrive soon differ, and equal lengths would keep them in step. Where prompts go first they stay so.

    Raises UsageError where both are given, or lengths are, but neither.
    """
    if qps is not None and concurrency is not None:
        raise UsageError("--qps and --concurrency are two ways in which requests arrive: leave one out")
    if concurrency is not None:
        asked = (
            parse_batches(concurrency, "numbers of requests for --concurrency")
            if isinstance(concurrency, str)
            else concurrency
        )
        drawn = prompts or str(lengths.prompt), outputs or (around if engine.mixed else str)(lengths.output)
        each = sorted(sizes_of(asked, "--concurrency", MAX_CONCURRENCY))
        return tuple(
            Traffic(None, *drawn, ROUNDS * n if requests is None else requests, seed, n, lengths.cached) for n in each
        )
    if qps is None:
        if (prompts, outputs, requests, seed) != (None, None, None, USUAL_SEED):
            what = "--prompt-lengths, --output-lengths, --requests and --seed"
            raise UsageError(f"{what} need --qps or --concurrency as well")
        return ()
    drawn = prompts or str(lengths.prompt), outputs or str(lengths.output)
    return (Traffic(qps, *drawn, USUAL_REQUESTS if requests is None else requests, seed, cached=lengths.cached),)


def generation(
    steps: Steps, lengths: Lengths, batch: int | Sequence[int] | str, weights: str | None,
    asked: Sequence[Traffic] = (), tell: Progress | None = None, cache: str | None = None,
    sizes: tuple[int, int] | None = None,
) -> Generation:  # fmt: skip
    """What `llm` answers of these runs, lengths and requests; sizes: of two pools. Raises UsageError where a batch or a
    length can't be.
    """
    lengths.check(steps.draft)
    steps = steps.made_for(lengths.longest)
    batches = batches_of(batch, MAX_BATCH)
    each = steps.cache_bytes_per_token()
    rows = by_batch(steps, batches, lengths, each, tell)
    pools = pools_of(steps, sizes, each) if sizes else None
    if pools is not None:
        rows = tuple(in_pools(b, lengths, pools, steps.plan.gpus) for b in rows)
    budget = lengths.chunk or steps.engine.tokens(find(steps.gpu)[0])
    services = serve(steps, asked, rows[-1].batch, budget, each, lengths.positions, tell, pools) if asked else ()
    if asked and asked[0].qps is not None and pools is None:
        services = (replace(services[0], capacity=_capacity(steps, asked[0], rows[-1].batch, budget, each, lengths)),)
    last = steps.at(rows[0].batch, 1, lengths.last)
    told = (
        *_of_draft(steps, rows, services),
        *_of_pools(pools, lengths, rows, services),
        *_of_options(lengths, each + (steps.draft.resident.cache_bytes_per_token if steps.draft else 0), rows),
    )
    return Generation(
        model=steps.model.name, gpu=last.scenario.gpu, runtime=last.scenario.runtime,
        precision=steps.precision or last.scenario.precision, engine=steps.engine.name,
        weights=weights, cache=cache, plan=plan_text(last.scenario.parallel), lengths=lengths,
        weights_bytes=last.memory.weights_bytes,
        cache_bytes_per_token=each, capacity_bytes=last.memory.capacity_bytes,
        largest_batch=largest_batch(steps, rows, lengths, each, tell), batches=rows,
        accuracy=steps.accuracy(weights, cache, cached=lengths.cached > 0, pools=pools is not None),
        service=services[0] if services else None, curve=services if len(services) > 1 else (),
        draft=_speculator(steps), pools=pools, notes=(*ASSUMED, *told, *steps.notes(rows[0].batch, 1, lengths.last)),
        steps=steps,
    )  # fmt: skip


def _capacity(
    steps: Steps, asked: Traffic, running: int, budget: int, each: int, lengths: Lengths
) -> float | None:  # fmt: skip
    """Requests a second with all places taken, as in a closed loop; None where it is too long to be simulated."""
    loop = replace(asked, qps=None, concurrency=running, requests=ROUNDS * running)
    try:
        (full,) = serve(steps, (loop,), running, budget, each, lengths.positions)
    except UsageError:  # more requests or tokens than are simulated
        return None
    return running / full.times["latency"].mean.seconds


def _speculator(steps: Steps) -> Speculator | None:
    """What is told of a draft."""
    if (d := steps.draft) is None:
        return None
    held = d.resident.weights_bytes, d.resident.cache_bytes_per_token
    return Speculator(d.steps.model.name, d.accept, d.tokens, d.per_step, *held)


def _of_draft(steps: Steps, rows: Sequence[Batch], services: Sequence[Service]) -> tuple[str, ...]:
    """What is assumed of a draft, and where it does not pay."""
    if (d := steps.draft) is None:
        return ()
    told = DRAFTED.format(counted(d.tokens, "run"), d.tokens + 1, d.tokens + 1, d.per_step, d.accept)
    batches = [(f"batch {b.batch:,}", b.speculation.speedup) for b in rows if b.speculation is not None]
    loops = [(_arriving(s.traffic), s.speedup) for s in services if s.speedup is not None]
    slower = [*_below_one(batches), *_below_one(loops)]
    return told, *([SLOWER.format(", ".join(slower))] if slower else [])


def _of_pools(
    pools: Pools | None, lengths: Lengths, rows: Sequence[Batch], services: Sequence[Service]
) -> tuple[str, ...]:  # fmt: skip
    """What is assumed of two pools, and how many instances of each would balance them."""
    if pools is None:
        return ()
    moved = pools.bytes_per_token * lengths.prompt + pools.bytes_per_sample
    rate, time = number(pools.link_bytes_per_second / 1e9), duration(pools.moving(lengths.prompt))
    told = POOLED.format(f"{pools.prefill}:{pools.decode}", size(moved), pools.link, rate, time)
    largest = max((b for b in rows if b.fits), key=lambda b: b.batch, default=rows[0])
    balance, batch, at = largest.pools.balance if largest.pools else 0.0, f"{largest.batch:,}", ""
    if services and (loads := services[-1].pools) is not None:
        balance, batch = loads.balance, f"{services[-1].batch:.3g}"
        at = f", which {_arriving(services[-1].traffic)} come to on average"
    return told, BALANCE.format(batch, at, balanced(balance))


def _arriving(t: Traffic) -> str:
    return f"{t.qps:g} requests/s" if t.qps is not None else f"{counted(t.concurrency, 'request')} at a time"


def _below_one(speedups: Sequence[tuple[str, float]]) -> list[str]:
    """The names of ascending sizes whose speedup rounds to less than 1; of all from one on, that one alone."""
    below = [name for name, speedup in speedups if round(speedup, 2) < 1]
    if len(below) > 1 and below == [name for name, _ in speedups[-len(below) :]]:
        return [f"{below[0]} and more"]
    return below


def _of_options(lengths: Lengths, each: int, rows: Sequence[Batch]) -> tuple[str, ...]:
    """What is assumed for options of serving; `each`: bytes of the cache of a token."""
    told, cached, batch = list[str](), lengths.cached_tokens, rows[-1].batch
    if lengths.cached:
        saved = size((batch - 1) * cached * each)
        blocks = f"whole blocks of {lengths.block}" if lengths.block > 1 else "to the token"
        told.append(CACHED.format(cached, lengths.prompt, blocks, batch, saved))
    return tuple(told)


def steps_of(
    model: Any, gpu: Gpu, asked: Request, config: Any = None, prefill: Any = None, weights: str | None = None,
    prune_lm_head: bool = False, cache: str | None = None, engine: str = USUAL_ENGINE, draft: Any = None,
    accept: float | None = None, draft_tokens: int | None = None,
) -> tuple[Steps, int | None]:  # fmt: skip
    """The runs of a decoder, and the longest context that it was made for, where that is known; arguments as of `llm`.

    Raises UsageError where they don't go together.
    """
    if (model is None) == (config is None):
        raise UsageError("give either the decoder's ONNX file or its config.json with --config")
    if asked.terms.get("mode", "inference") != "inference":
        raise UsageError("generation is inference only: leave --mode out")
    engine = choice_named(engine, ENGINES)
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r:.60}: it is one of {', '.join(ENGINES)}")
    if draft is None and (accept, draft_tokens) != (None, None):
        raise UsageError("--accept and --draft-tokens need --draft, the config.json of a model that proposes tokens")
    if config is None:
        if draft is not None:
            raise UsageError("--draft needs --config: of a file the run that verifies proposed tokens can't be made")
        if engine != USUAL_ENGINE:
            raise UsageError(f"--engine {engine} needs --config: a file holds the graph of ONNX Runtime")
        if weights is not None or cache is not None or prune_lm_head:
            asked_for = "--weights, --cache and --prune-lm-head"
            raise UsageError(f"{asked_for} need --config: a file has its own")
        steps = Steps(opened(model), gpu, asked, None if prefill is None else opened(prefill))
        steps.check()
        return steps, None
    if prefill is not None:
        raise UsageError("--config makes one graph for prefill and decode: leave --prefill out")
    c, name = _configuration(config)
    how: dict[str, Any] = {"gpu": gpu, "asked": asked, "weights": weights, "cache": cache}
    how |= {"prune": prune_lm_head or engine != USUAL_ENGINE}
    steps = config_steps(c, name, ENGINES[engine], **how)
    if draft is None:
        return steps, c.positions
    d, small = _configuration(draft)
    if d.vocab != c.vocab:
        both = f"{d.vocab:,} tokens, and the model of {c.vocab:,}"
        raise UsageError(f"--draft has a vocabulary of {both}: it must be the same for a draft to propose tokens")
    if steps.plan.microbatches > 1 or c.state or d.state:
        why = "with microbatches" if steps.plan.microbatches > 1 else "of models with states, which take no token back"
        raise UsageError(f"--draft: speculative decoding {why} is not predicted")
    share, tokens = _accepted(accept, draft_tokens)
    verifying = config_steps(c, name, replace(ENGINES[engine], launch_s=0.0), **{**how, "prune": False})
    try:
        proposing = config_steps(d, small, replace(ENGINES[engine], step_s=0.0, request_s=0.0), **how)
        kept = proposing.resident()
    except UsageError as e:
        raise UsageError(f"--draft: {e}") from None
    return (
        replace(steps, draft=Draft(proposing, verifying, share, tokens, kept, steps.resident(), d.positions)),
        min(c.positions, d.positions),
    )


def _configuration(config: Any) -> tuple[DecoderConfig, str]:
    """A configuration that is given as a file or as what it holds, and the name of the file."""
    return (config_of(config), "") if isinstance(config, Mapping) else (read_config(config), os.fspath(config))


def _accepted(accept: float | None, tokens: int | None) -> tuple[float, int]:
    """How likely a proposed token is accepted, and how many are proposed. Raises UsageError where they can't be."""
    if accept is None:
        raise UsageError("--draft needs --accept: how likely the model accepts a proposed token, such as 0.7")
    check_share("--accept", accept)
    tokens = USUAL_DRAFT if tokens is None else tokens
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 1 <= tokens <= MOST_DRAFT:
        raise UsageError(f"--draft-tokens must be a whole number from 1 to {MOST_DRAFT}, not {tokens!r:.60}")
    return accept, tokens


def config_steps(
    c: DecoderConfig, name: str, engine: Engine, gpu: Gpu, asked: Request, weights: str | None, cache: str | None,
    prune: bool,
) -> Steps:  # fmt: skip
    """The runs of a configuration under an engine; prune: logits of the last position only."""
    if engine.name != USUAL_ENGINE:
        return under(engine, c, name, gpu, asked, weights, cache, prune)
    served = c.dtype if c.dtype != "float32" else _half(gpu)
    dtype = BUILT_AS.get(str(asked.terms.get("precision", "keep")), served)
    how: dict[str, Any] = {"dtype": dtype, "weights": weights, "cache": cache, "prune_head": prune}
    built = opened(decoder(c, **how))._replace(name=name or c.model_type)
    begins = opened(decoder(c, **how, begins=True))._replace(name=built.name) if c.prompt_apart else None
    plain = weights is None and asked.terms.get("precision") != "fp8"
    told = [*([STORED.format(c.stored_as, dtype)] if c.stored_as and plain else []), *_defaults(c, asked)]
    told += [IN_HALF.format(dtype)] if c.dtype == "float32" and dtype == served else []
    told += [] if prune else [EVERY_POSITION]
    told += [_kept_whole(c, 8 if cache else BITS[dtype])] if any(c.windows) else []
    told += [LATENT.format(UNVALIDATED, c.latent + c.rope_dim, c.latent)] if c.latent else []
    told += [SPARSE.format(c.index_count)] if c.index_count else []
    told += [_kept_states(c)] if c.state else []
    shared = sum(b.back > 0 for b in c.blocks)
    told += [SHARED.format(shared, c.layers)] if shared else []
    steps = Steps(built, gpu, asked, begins, told=tuple(told), engine=engine, limit=_limit(c))
    steps.check()
    return steps


def under(
    engine: Engine, c: DecoderConfig, name: str, gpu: Gpu, asked: Request, weights: str | None, cache: str | None,
    prune: bool,
) -> Steps:  # fmt: skip
    """The runs of a decoder under a serving engine. Raises UsageError for what the engine decides itself."""
    flag = f"--engine {engine.name}"
    for term in DECIDED:
        value = asked.terms.get(term)
        if value is not None and not TERMS[term].is_usual(value):
            raise UsageError(f"{flag} decides {TERMS[term].flags[0]} itself: leave it out")
    if find(gpu)[0].kind != "gpu":
        raise UsageError(f"{flag} is there for GPUs only")
    if parse_plan(asked.terms.get("parallel"), asked.terms.get("gpus")).pp > 1:
        raise UsageError(f"{flag} has no pipelines here: take tp, dp or ep in --parallel")
    precision = str(asked.terms.get("precision", "keep"))
    if precision not in SERVED_IN:
        raise UsageError(f"{flag} serves in {', '.join(SERVED_IN)}, not in --precision {precision}")
    half = _half(gpu) if c.dtype == "float32" else c.dtype
    dtype = BUILT_AS.get(precision, half)
    stored = {"keep": c.stored, "fp8": FP8}.get(precision)
    stored = WEIGHTS_ONLY[weights] if weights is not None else stored
    cache = cache or (stored.cache if stored else "") or None
    told = [STORED.format(c.stored_as, dtype)] if c.stored_as and stored is None else []
    told += [*_defaults(c, asked), ENGINE.format(engine.title)]
    told += [IN_HALF.format(dtype)] if c.dtype == "float32" and dtype == half else []
    measured = NOT_SPARSE if c.index_count else IN_MODELS
    told += [LATENT.format(measured, c.latent + c.rope_dim, c.latent)] if c.latent else []
    asked = replace(asked, terms={**asked.terms, "precision": "keep"})

    def runs(c: DecoderConfig) -> Steps:
        how: dict[str, Any] = {"dtype": dtype, "cache": cache, "prune_head": prune}
        built = opened(decoder(c, **how))._replace(name=name or c.model_type)
        begins = opened(decoder(c, **how, begins=True))._replace(name=built.name) if c.latent else None
        return Steps(
            built, gpu, asked, begins, told=tuple(told), engine=engine, stored=stored, precision=precision,
            limit=_limit(c),
        )  # fmt: skip

    steps = runs(c)
    steps.check()
    less, more, times = thinned(c)
    few = times >= LEAST_PERIODS
    return replace(steps, thin=(runs(less), runs(more)), times=times) if few else steps


def thinned(c: DecoderConfig) -> tuple[DecoderConfig, DecoderConfig, int]:
    """Two decoders with few layers of a model, of which the second has one more period of its layers, and how many
    periods the model has more than the first: layers differ in what they are, and repeat behind the first ones.
    """
    kinds = c.blocks
    first, period = next(
        (k, p) for k in range(c.layers) for p in range(1, c.layers - k + 1)
        if p <= MOST_PERIOD and all(kinds[i] == kinds[i + p] for i in range(k, c.layers - p))
    )  # fmt: skip
    periods, rest = divmod(c.layers - first, period)

    def cut(layers: int) -> DecoderConfig:
        return replace(c, blocks=c.blocks[:layers])

    return cut(first + 2 * period + rest), cut(first + 3 * period + rest), periods - 2


def _defaults(c: DecoderConfig, asked: Request) -> list[str]:
    """What is taken where the configuration says nothing."""
    typed = "dtype" not in c.unsaid or asked.terms.get("precision", "keep") in BUILT_AS
    return [*([] if typed else [UNTYPED.format(c.dtype)]), *filter(None, [_limit(c)])]


def _limit(c: DecoderConfig) -> str:
    """How long contexts may be, where the configuration does not say and the model attends; else ""."""
    unsaid = "max_position_embeddings" in c.unsaid and any(b.mixer in ATTENDING for b in c.blocks)
    return UNLIMITED.format(c.positions, c.model_type) if unsaid else ""


def _half(gpu: Gpu) -> str:
    """The type of 16 bits in which a card serves: bfloat16, or float16 where it has no unit for that."""
    return "float16" if lacks_unit(find(gpu)[0], "bf16") else "bfloat16"


def _kept_states(c: DecoderConfig) -> str:
    """What is assumed of layers that keep a state."""
    kept = [c.state.elements() for b in c.blocks if c.state and b.mixer == c.state.kind]
    return STATES.format(len(kept), c.layers, size(4 * sum(kept)))


def _kept_whole(c: DecoderConfig, bits: int) -> str:
    """What windows would save of the cache at the longest context, at which they save most; bits of an element."""
    windows = [w for w in c.windows if w]
    capped, whole = (c.cache_elements(tokens=c.positions, capped=x) * bits // 8 for x in (True, False))
    return WINDOWS.format(len(windows), c.layers, max(windows), size(capped), c.positions, size(whole))
