"""Single runs of a decoder: so many new tokens after so many past ones, each predicted once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from gpu_specs import Device
from onnxperf.answer.accuracy import HALF, WHOLE, Accuracy, of_generation, precision_of, stored_type
from onnxperf.answer.notes import notes
from onnxperf.answer.outline import Outline
from onnxperf.export.decoder_quantised import Stored
from onnxperf.graph import Opened
from onnxperf.graph.decoder_dims import DecoderDims, decoder_dims
from onnxperf.ground.codec import Document
from onnxperf.ground.errors import UsageError
from onnxperf.ground.names import USUAL_ENGINE
from onnxperf.language.engines import ENGINES, Engine, runner
from onnxperf.language.served import EXPERTS, Bare, bare, grown, hosted, under
from onnxperf.passes.plan import Plan, parse_plan
from onnxperf.running.microbatches import fullest, in_turn, stage_of, through
from onnxperf.running.pipeline import Gpu, Request, run_of
from onnxperf.running.run import Run

#: Notes of single runs that a reader of a generation's times should know: units and kernels that are not there, how
#: GPUs are joined and divide the work, what no measurement confirms.
TOLD = frozenset({
    "assumed-operator", "host-fallback", "hosted", "network", "no-dtype", "no-kernel", "no-switch", "no-unit",
    "nothing-quantised", "packed-weights", "release", "repeated-heads", "sharded", "unknown-operator", "unvalidated",
    "usual-cluster", "weights-written-out",
})  # fmt: skip
#: Of a file whose attention no fusion of the runtime makes one operator.
APART = (
    "attention is not fused in this file, a step has {:,} kernels: the graph of --config has fused attention, fewer"
    " kernels, and is faster"
)


@dataclass(frozen=True, slots=True)
class Seconds(Document):
    """Seconds and their 80% range.

    Predictions of one model on one card are taken to err together, as they rest on the same kernels: the range of a sum
    is the sum of the ranges.
    """

    seconds: float = 0.0
    low_seconds: float = 0.0
    high_seconds: float = 0.0

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(*(a + b for a, b in zip(self.ends(), other.ends(), strict=True)))

    def times(self, factor: float) -> Seconds:
        """Each end multiplied."""
        return Seconds(*(factor * x for x in self.ends()))

    def ends(self) -> tuple[float, float, float]:
        """The time, its lower and its upper end."""
        return self.seconds, self.low_seconds, self.high_seconds


@dataclass(frozen=True, slots=True)
class Resident:
    """What a model keeps in the memory of one GPU from run to run: weights, of each token of a sample keys and values,
    of each sample states.
    """

    weights_bytes: int
    cache_bytes_per_token: int
    state_bytes: int = 0

    def bytes(self, samples: int, tokens: int) -> int:
        """Of so many samples with caches for `tokens` each."""
        return self.weights_bytes + samples * (self.cache_bytes_per_token * tokens + self.state_bytes)


@dataclass(frozen=True, slots=True)
class Draft:
    """A small model that proposes tokens one after the other, which the model then verifies in one run: speculative
    decoding (Leviathan et al. 2023, arXiv:2211.17192).

    steps: runs of the draft, without the host's part of an iteration; verifying: runs of the model with logits of every
    position, replayed as its decode steps are; accept: how likely a proposed token is the model's, each independently;
    tokens: that are proposed in a step; resident, main: what the draft and the model keep in memory; positions: the
    longest context that the draft was made for.
    """

    steps: Steps
    verifying: Steps
    accept: float
    tokens: int
    resident: Resident
    main: Resident
    positions: int

    @property
    def per_step(self) -> float:
        """Tokens that a step gives a sample on average, (1 - a^(K + 1)) / (1 - a) of K proposed ones: equation 1."""
        return float(sum(self.accept**i for i in range(self.tokens + 1)))

    def proposal(self, batch: int, pasts: Sequence[int]) -> Seconds:
        """The draft's runs of a step after each of `pasts`."""
        return self.steps.over(batch, 1, pasts).times(self.tokens)

    def verification(self, batch: int, pasts: Sequence[int]) -> Seconds:
        """The model's run of a step after each of `pasts`: the proposed tokens and the one before them."""
        return self.verifying.over(batch, self.tokens + 1, pasts)

    def made_for(self, longest: int) -> Draft:
        """The same with caches for samples of another length, and for the tokens of a last step beyond it."""
        longest += self.tokens
        return replace(self, steps=self.steps.made_for(longest), verifying=self.verifying.made_for(longest))


@dataclass(frozen=True, slots=True)
class Steps:
    """A decoder on a card, or on a group of cards, the lengths of whose runs are chosen.

    Where a plan divides the batch, `groups` of cards take a part of it each: a batch here is that of one group.
    model: continues from a cache; prompt: takes the prompt, where that is another file; longest: tokens that the cache
    of a sample is made for; asked: other open dimensions and shapes, trip counts and terms, whatever its model is;
    told: notes on how the model was made; engine: what runs it, and `stored` how that has the
    weights of products; precision: what was asked for, where the runs have another, "" where they have it.
    thin: the same of two decoders with few layers, which differ by a period of the layers, and `times` how often that
    is in the model beyond the first: runs are then predicted from these, in a part of the time. draft: what proposes
    tokens, None where a decode step gives one. limit: by what default contexts are so long at most, "" where the model
    says how long.
    """

    model: Opened
    gpu: Gpu
    asked: Request
    prompt: Opened | None = None
    longest: int = 1
    told: tuple[str, ...] = ()
    engine: Engine = ENGINES["ort-genai"]
    stored: Stored | None = None
    precision: str = ""
    thin: tuple[Steps, Steps] | None = field(default=None, repr=False, compare=False)
    times: int = 0
    draft: Draft | None = field(default=None, repr=False)
    limit: str = ""
    kept: dict[tuple[int, int, int, int], Outline] = field(default_factory=dict, repr=False, compare=False)

    @property
    def plan(self) -> Plan:
        """How several GPUs divide the work."""
        return parse_plan(self.asked.terms.get("parallel"), self.asked.terms.get("gpus"))

    @property
    def groups(self) -> int:
        """How many groups of GPUs have samples of their own."""
        return self.plan.copies

    def share(self, batch: int) -> int:
        """The samples of a batch that the group with most of them has."""
        return ceil(batch / self.groups)

    def at(self, batch: int, new: int, past: int) -> Outline:
        """A run of `new` tokens of each of `batch` samples after `past` ones; a prompt where `past` is 0.

        Raises UsageError where the model can't have these sizes.
        """
        return self.each_at([(batch, new, past)])[0]

    def each_at(self, runs: Iterable[tuple[int, int, int]]) -> list[Outline]:
        """Each of these runs, as `at` has them; those that were not predicted before are estimated at once."""
        keys = [(*run, self.longest) for run in runs]
        missing = [key[:3] for key in dict.fromkeys(keys) if key not in self.kept]
        for (batch, new, past), run in zip(missing, self._bare(missing) if missing else (), strict=True):
            self.kept[batch, new, past, self.longest] = hosted(run, self.engine, batch, new)
        return [self.kept[key] for key in keys]

    def _bare(self, sizes: Sequence[tuple[int, int, int]]) -> list[Bare]:
        """Those runs without the engine's host, from the decoders of few layers where there are any."""
        if self.thin is None:
            return bare([self._run(*size) for size in sizes], self.engine, self.stored)
        less, more = (s.made_for(self.longest)._bare(sizes) for s in self.thin)
        return [grown(a, b, self.times) for a, b in zip(less, more, strict=True)]

    def whole(self, batch: int, new: int, past: int) -> Run:
        """That run with every kernel of all layers, as ONNX Runtime runs those that the engine launches."""
        return under(self._run(batch, new, past), self.engine, self.stored)

    def seconds(self, batch: int, new: int, past: int) -> Seconds:
        """How long that run takes: one token after another, a pipeline need not wait for its last microbatch."""
        o = self.at(batch, new, past)
        seconds = Seconds(o.seconds, o.low_seconds, o.high_seconds)
        return seconds if new > 1 or self.plan.microbatches == 1 else seconds.times(self._steady(batch, past))

    def _steady(self, batch: int, past: int) -> float:
        """The share that a decode step takes, of one whose pipeline begins empty, where one follows the other."""
        run = self._run(batch, 1, past)
        stages, alone = run.stages(0), float(run.timeline.total_s[0])
        saved = through(stages, self.plan.microbatches) - in_turn(stages, self.plan.microbatches)
        return 1 - saved / alone

    def over(self, batch: int, new: int, pasts: Sequence[int]) -> Seconds:
        """Runs after each of `pasts`, which ascend, one after the other: predicted at the first, the middle and the
        last of them, and interpolated linearly between.
        """
        if not pasts:
            return Seconds()
        contexts = sorted({pasts[0], pasts[len(pasts) // 2], pasts[-1]})
        self.each_at((batch, new, past) for past in contexts)
        ends = zip(*(self.seconds(batch, new, past).ends() for past in contexts), strict=True)
        return Seconds(*(float(np.interp(pasts, contexts, end).sum()) for end in ends))

    @property
    def device(self) -> Device:
        """The card."""
        return self._run(1, 1, 1).devices[0]

    @property
    def runner(self) -> str:
        """What runs it: the engine, or a runtime by itself."""
        return runner(self.engine.name, self._run(1, 1, 1).scenario.runtime)

    @property
    def experts(self) -> bool:
        """Whether the model is a mixture of experts."""
        return any(o.type in EXPERTS for o in self._run(1, 1, 1).typed_graph.operators)

    def accuracy(self, weights: str | None, cache: str | None, *, cached: bool, pools: bool = False) -> Accuracy:
        """Whether generation like it was measured; weights, cache: the types that these were asked to be in, None for
        those of the model; cached, pools: as of `of_generation`.
        """
        types = weights or self._types(cache)
        of = {"several": self.plan.gpus > 1, "experts": self.experts, "draft": self.draft is not None}
        return of_generation(self.runner, self.device, types, **of, cached=cached, pools=pools)

    def _types(self, cache: str | None) -> str:
        """The types of weights, keys and values, as measured generation is told apart. Engines ran some models with
        experts with weights in 4 bits, of others none; activations in 4 bits none did.
        """
        if self.engine.name != USUAL_ENGINE:
            s = self.stored
            few = s is not None and s.bits < 8 and (not self.experts or s.activations == "fp4")
            return f"{s.bits} bits" if s is not None and few else WHOLE
        run = self._run(1, 1, 1)
        named = precision_of(run.scenario, run.runtime, run.devices[0], run.kept(stored_type, run.graph))
        types = HALF if named in ("fp16", "bf16") else named
        return f"{types}, keys and values in {cache}" if cache else types

    @property
    def width(self) -> int:
        """Tokens of each sample in a decode step."""
        return self.draft.tokens + 1 if self.draft else 1

    @property
    def per_step(self) -> float:
        """Tokens that a decode step gives each sample on average."""
        return self.draft.per_step if self.draft else 1.0

    def decode(self, batch: int, pasts: Sequence[int]) -> Seconds:
        """A decode step after each of `pasts`, one after the other, see `over`."""
        if self.draft is None:
            return self.over(batch, 1, pasts)
        return self.draft.proposal(batch, pasts) + self.draft.verification(batch, pasts)

    def cache_bytes_per_token(self) -> int:
        """Bytes of keys and values that a token of one sample takes, in the types that the run has."""
        dims = self._dims(self.model)
        run = self._run(1, 1, 1)
        caches = {t.name: t.bytes for t in run.typed_graph.inputs if t.name in dims.caches}
        if self.plan.pp > 1:  # of the stage that holds most
            stage = fullest(run.stage_footprints)
            operators = [o for o in run.run_graph.operators if stage_of(o, run.stage_of) == stage]
            caches = {t.name: caches[t.name] for o in operators for t in o.present if t.name in caches}
        held = sum(caches.values())
        return held // (dims.room or (self.longest if dims.in_place else 1))

    def state_bytes(self) -> int:
        """Bytes of what linear attention and convolutions keep of one sample, whatever its length."""
        run, states = self._run(1, 1, 1), self._dims(self.model).states
        return sum(t.bytes for t in run.typed_graph.inputs if t.name in states)

    def _run(self, batch: int, new: int, past: int) -> Run:
        """The run that `at` describes."""
        model = self.prompt if self.prompt is not None and past == 0 else self.model
        decoder, plan = self._dims(model), self.plan
        whole = ceil(batch / plan.microbatches) * plan.parts
        dims = {**(self.asked.dims or {}), **decoder.bound(whole, new, past, self.longest)}
        shapes = {**(self.asked.shapes or {}), **decoder.shapes(whole, self.longest)}
        return run_of(replace(self.asked, model=model, dims=dims, shapes=shapes), self.gpu)

    def notes(self, batch: int, new: int, past: int) -> tuple[str, ...]:
        """What of TOLD is said of that run, each once."""
        run = self._run(batch, new, past)
        attending = [o.type.endswith("Attention") for o in run.run_graph.operators]
        apart = () if any(attending) or not self._dims(self.model).caches else (APART.format(len(run.kernels.rows)),)
        messages = (n.message for n in notes(run, 0) if n.code in TOLD)
        return tuple(dict.fromkeys((*self.told, *apart, *messages)))

    def made_for(self, longest: int) -> Steps:
        """The same with a cache of another length."""
        return replace(self, longest=longest, draft=self.draft and self.draft.made_for(longest))

    def resident(self) -> Resident:
        """What the model keeps in memory."""
        steps = self.made_for(2)
        weights = steps.at(1, 1, 1).memory.weights_bytes
        return Resident(weights, steps.cache_bytes_per_token(), steps.state_bytes())

    @property
    def copies(self) -> int:
        """How many of a cache lie in memory: two where a run reads one and writes a longer one."""
        return 1 if self._dims(self.model).in_place else 2

    @property
    def room(self) -> int:
        """Tokens of a sample for which a model of a fixed length has room, 0 where its caches are as long as asked."""
        return self._dims(self.model).room

    def needed_bytes(self, runs: Iterable[tuple[int, int, int]]) -> int:
        """The most that any of these runs, of `at`'s arguments, needs of the card's memory, with CUDA's context."""
        return max(o.memory.total_bytes + o.memory.context_bytes for o in self.each_at(runs))

    def check(self) -> None:
        """Raise UsageError where the model has no cache of past keys and values, or can't take a prompt, and where a
        size is asked for that batch and lengths decide.
        """
        dims = self._dims(self.model)
        for what, flag, names in (("dims", "--dim", dims.names), ("shapes", "--shapes", dims.inputs)):
            sizes = getattr(self.asked, what) or {}
            if not isinstance(sizes, Mapping):
                raise UsageError(f"{what} must map names to sizes; a {type(sizes).__name__} does not")
            if decided := [name for name in names if name in sizes]:
                raise UsageError(f"--batch, --prompt and --output decide {decided[0]!r:.60}: leave it out of {flag}")
        if not dims.caches and not dims.states:
            why = "it has no inputs for a KV cache, so that every step would recompute all tokens"
            raise UsageError(f"{self.model.name} can't be continued: {why}; export it with a KV cache")
        if self.prompt is None and dims.new == 1:
            raise UsageError(f"{self.model.name} takes one token at a time: give the model for prefill with --prefill")

    @staticmethod
    def _dims(model: Opened) -> DecoderDims:
        """The dimensions of a model, found once."""
        if DecoderDims not in model.kept:
            model.kept[DecoderDims] = decoder_dims(model.proto)
        dims: DecoderDims = model.kept[DecoderDims]
        return dims
