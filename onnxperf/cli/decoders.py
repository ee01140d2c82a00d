"""`compare` and `recommend` of language models: what tells that these are asked for, and what their options say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from onnxperf.cli.arguments import DECODER_FILES, TRAINING, files_read
from onnxperf.cli.sections import SECTIONS
from onnxperf.graph.targets import check_target
from onnxperf.ground.errors import UsageError
from onnxperf.ground.output import deliver, telling
from onnxperf.running.terms import TERMS

if TYPE_CHECKING:
    from onnxperf.language.decoding import Decoding
    from onnxperf.running.pipeline import Gpu

OPTIONS = SECTIONS["Language models"]


def decodes(*others: str) -> bool:
    """Whether an option of language models is given to this command; others: options that are such here alone."""
    context = click.get_current_context()
    named = (name for name in (*OPTIONS, *others) if name in context.params)
    return any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in named)


def of_a_model(model: str | None, terms: Mapping[str, Any], *others: str) -> tuple[str, dict[str, Any]]:
    """The model, which must be named, and the terms without the options of language models."""
    if model is None:
        raise click.MissingParameter(ctx=click.get_current_context(), param_hint="'MODEL'", param_type="argument")
    return model, {name: value for name, value in terms.items() if name not in (*OPTIONS, *others)}


def compare_decoder(
    model: str | None, cards: list[Gpu], by: str, prices: Mapping[str, float], json_to: str | None,
    limit_s: float | None, token_s: float | None, first_s: float | None, **asked: Any,
) -> None:  # fmt: skip
    """`compare` of a language model."""
    from onnxperf.decide.choices import priced
    from onnxperf.decide.compare_llm import compared_llm
    from onnxperf.decide.pace import Pace
    from onnxperf.ground.tables import console
    from onnxperf.views.choices_llm import show_comparison

    decoding = _decoding(model, json_to, limit_s, asked)
    with telling() as tell:
        comparison = compared_llm(decoding, cards, by, Pace(token_s, first_s), priced(prices), tell)
    deliver(json_to, comparison.to_json, lambda: show_comparison(console(), comparison))


def recommend_decoder(
    model: str | None, cards: list[Gpu], qps: float | None, percentile: float | None, prices: Mapping[str, float],
    json_to: str | None, limit_s: float | None, token_s: float | None, first_s: float | None, **asked: Any,
) -> None:  # fmt: skip
    """`recommend` of a language model."""
    from onnxperf.decide.choices import priced
    from onnxperf.decide.pace import Pace
    from onnxperf.decide.recommend_llm import check_gpus, keep, recommended_llm
    from onnxperf.ground.tables import console
    from onnxperf.views.choices_llm import show_recommendation

    check_gpus(asked["gpus"])
    if qps is None:
        raise UsageError("recommend takes --qps, and --tpot, --ttft or both, for a language model")
    percentage = None if percentile is None else int(percentile) if percentile.is_integer() else percentile
    pace = Pace(token_s, first_s, percentage)  # type: ignore[arg-type]
    pace.check()
    decoding = _decoding(model, json_to, limit_s, asked)
    with telling() as tell:
        advice = recommended_llm(decoding, cards, qps, pace, priced(prices), tell)
    deliver(json_to, advice.to_json, lambda: show_recommendation(console(), advice), lambda: keep(advice))


def _decoding(model: str | None, json_to: str | None, limit_s: float | None, asked: dict[str, Any]) -> Decoding:
    """What is asked of a language model. Raises UsageError for options that say nothing of one."""
    from onnxperf.language.decoding import decoding_of

    if limit_s is not None:
        raise UsageError("--max-latency is of a whole run: a language model is limited by --tpot and --ttft")
    for name in ("layout", *TRAINING):
        if not TERMS[name].is_usual(asked[name]):
            raise UsageError(f"{TERMS[name].flags[0]} says nothing of a language model that generates: leave it out")
    sources = files_read(asked, model, *(asked[name] for name in DECODER_FILES))
    check_target(json_to, *sources)
    return decoding_of(model, asked)
