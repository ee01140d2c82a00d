"""Commands that choose: which card there is, which of them, which batch, how many of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from onnxperf.cli.arguments import (
    DURATION,
    Number,
    OneOf,
    asked_of,
    by_card,
    check_among,
    debug,
    loaded,
    of_cards,
    of_one,
    of_requests,
    paced,
    parse_number,
    read_option,
    refuse_others,
    tell_aliases,
)  # fmt: skip
from onnxperf.cli.decoders import compare_decoder, decodes, of_a_model, recommend_decoder
from onnxperf.cli.sections import command
from onnxperf.ground.errors import UsageError
from onnxperf.ground.names import RANKED_BY
from onnxperf.ground.output import deliver

if TYPE_CHECKING:
    from gpu_specs import Price
    from onnxperf.running.pipeline import Gpu

#: Options that say something of a fleet: which cards, their prices, and where the answer goes.
OF_FLEETS = ("gpu", "every", "capacity_bytes", "generation", "prices", "json_to", "debug")


@command()
@click.argument("model", type=click.Path(), required=False)
@of_requests
@loaded
@paced
@of_cards
@click.option("--by", type=OneOf(RANKED_BY), default="latency", show_default=True, help="What to rank by.")
@read_option("--max-latency", "limit_s", read=DURATION, metavar="20ms", help="Only batch sizes within this latency.")
@debug
def compare(
    model: str | None, gpu: tuple[str, ...], every: bool, capacity_bytes: float | None, generation: str | None,
    prices: dict[str, float], json_to: str | None, by: str, limit_s: float | None, **terms: Any,
) -> None:  # fmt: skip
    """Predict MODEL on several cards, and rank them.

    With --batch, all columns and --max-latency are for that batch size. Without it, latency and memory are those of the
    file's batch, 1 if it is dynamic, and the other columns those of the batch size with the highest throughput. Cards
    with overlapping intervals share a rank.

    With --config, or another option of language models, columns are time to first token (TTFT), time per output token
    (TPOT), tokens/s and cost: of a batch, or with --qps or --concurrency of a simulated server, as in `onnxperf llm`.
    --by latency then ranks by TPOT. Cards that cannot keep up with --qps are listed with the reason, not ranked.

    \b
    Examples:
      onnxperf compare resnet50.onnx --gpu t4,l4,a10g,a100,h100
      onnxperf compare bert.onnx --all --gpu-memory 24GB --by cost --max-latency 20ms --dim sequence=128
      onnxperf compare --config config.json --gpu l4,a100-80gb,h100 --engine vllm --concurrency 32
    """
    from onnxperf.decide.choices import priced, selected
    from onnxperf.decide.compare import compared
    from onnxperf.ground.output import telling
    from onnxperf.ground.tables import console
    from onnxperf.views.choices import show_comparison

    tell_aliases(gpu)
    cards = selected(gpu, every, capacity_bytes, generation)
    check_among("--price", prices, cards)
    if decodes("qps"):
        compare_decoder(model, cards, by, prices, json_to, limit_s, **terms)
        return
    model, terms = of_a_model(model, terms, "qps")
    price_by_card = priced(prices)
    with telling() as tell:
        comparison = compared(asked_of(model, json_to, gpu=gpu, **terms), cards, by, limit_s, price_by_card, tell)
    deliver(json_to, comparison.to_json, lambda: show_comparison(console(), comparison))


@command()
@click.argument("model", type=click.Path(), required=False)
@of_requests
@paced
@read_option(
    "--max-latency",
    "limit_s",
    read=DURATION,
    metavar="20ms",
    help="Limit on the latency of a request: its mean, or its --percentile.",
)
@click.option("--percentile", type=Number(), metavar="99",
              help="Limit this percentile of the latency.  [default: the mean]")  # fmt: skip
@click.option(
    "--qps", type=Number(), metavar="N", help="Requests per second, of one sample each, or to a language model."
)
@click.option(
    "--fleet",
    type=click.Path(),
    metavar="FLEET.toml",
    help="Instead of MODEL: several models with their rates and limits.",
)
@read_option("--available", read=partial(by_card, parse=partial(parse_number, form="CARD=N, such as l4=4")),
             multiple=True, metavar="l4=4",
             help="With --fleet: how many of a card there are; several as l4=4,t4=8.")  # fmt: skip
@of_cards
@debug
def recommend(
    model: str | None, limit_s: float | None, percentile: float | None, qps: float | None, gpu: tuple[str, ...],
    every: bool, capacity_bytes: float | None, generation: str | None, prices: dict[str, float], json_to: str | None,
    fleet: str | None, available: dict[str, int], **terms: Any,
) -> None:  # fmt: skip
    """Find the cheapest card, batch and replicas to serve MODEL.

    Requests arrive at random and are split at random among the replicas. Each replica has its own queue and runs full
    batches one after the other. --max-latency limits the mean latency of a request, or with --percentile 99 the latency
    of 99% of requests. The queue is M/D/1, for batches E_b/D/1 (means by Kingman's approximation): every run takes its
    predicted time. Without --gpu, all cards with a price are considered.

    For a language model, with --tpot, --ttft or both: the cheapest card, plan (one GPU, or tp=2, 4, 8) and number of
    instances. Each instance is simulated with its share of the requests, as `onnxperf llm --qps` does, with up to
    --batch requests at a time (256 by default). The limits are on means, or with --percentile on the 50th, 90th or
    99th percentile.

    With --fleet FILE: the cheapest mix of cards for several models. FILE is a TOML file with a table [[model]] for
    each: path (or config of a language model), qps, and limits, max_ms (or ttft_ms, tpot_ms). --available says how many
    of a card there are. One model may run on cards of several kinds. This needs the extra fit.

    With --gpus instead of --max-latency and --qps: rank the parallel plans (dp, tp, pp, ep) for this number of GPUs.

    The exit code is 1 if no card meets the limits, or no plan fits.

    \b
    Examples:
      onnxperf recommend resnet50.onnx --max-latency 10ms --qps 500
      onnxperf recommend resnet50.onnx --max-latency 20ms --qps 500 --percentile 99
      onnxperf recommend gpt3-xl.onnx --gpu a100 --gpus 8 --batch 16 --dim sequence=1024
      onnxperf recommend bert.onnx --max-latency 20ms --qps 2000 --gpu t4,l4,a10g --price l4=0.60 --precision fp16
      onnxperf recommend --config config.json --engine vllm --qps 20 --tpot 50ms --ttft 1s --gpu a100-80gb,h100,l40s
      onnxperf recommend --fleet fleet.toml --gpu t4,l4,a10g --available l4=4
    """
    from onnxperf.decide.choices import priced, selected
    from onnxperf.decide.recommend import keep, recommended
    from onnxperf.ground.output import telling
    from onnxperf.ground.tables import console
    from onnxperf.views.choices import show_recommendation

    tell_aliases(gpu or ())
    price_by_card = priced(prices)
    named = gpu or (() if every else tuple(price_by_card))
    if fleet is not None:
        cards = selected(named, every, capacity_bytes, generation)
        check_among("--price", prices, cards)
        check_among("--available", available, cards)
        _recommend_fleet(fleet, cards, price_by_card, available, json_to)
        return
    if available:
        raise UsageError("--available counts the cards of a --fleet")
    if decodes():
        cards = selected(named, every, capacity_bytes, generation)
        check_among("--price", prices, cards)
        recommend_decoder(model, cards, qps, percentile, prices, json_to, limit_s, **terms)
        return
    model, terms = of_a_model(model, terms)
    if terms["gpus"] is not None:
        limits = (limit_s, qps, percentile)
        if any(limit is not None for limit in limits) or every or capacity_bytes or generation or len(gpu or ()) != 1:
            raise UsageError("--gpus ranks parallel plans on one card: give --gpu CARD, and no limits or other cards")
        _recommend_plan(model, gpu[0], json_to, **terms)
        return
    if limit_s is None or qps is None:
        raise UsageError("recommend takes --max-latency and --qps, or --gpus with --gpu")
    if terms["batch"] is not None:
        raise UsageError("recommend chooses the batch: leave --batch out; compare ranks cards at a batch")
    cards = selected(named, every, capacity_bytes, generation)
    check_among("--price", prices, cards)
    with telling() as tell:
        advice = recommended(
            asked_of(model, json_to, gpu=gpu, **terms), cards, limit_s, qps, percentile, price_by_card, tell
        )
    deliver(json_to, advice.to_json, lambda: show_recommendation(console(), advice), lambda: keep(advice))


def _recommend_fleet(
    fleet: str, cards: list[Gpu], prices: Mapping[str, Price], available: Mapping[str, int], json_to: str | None
) -> None:
    from onnxperf.decide.recommend_fleet import keep, recommended_fleet
    from onnxperf.graph.targets import check_target
    from onnxperf.ground.output import telling
    from onnxperf.ground.tables import console
    from onnxperf.views.fleet import show

    refuse_others("--fleet", "fleet", "available", *OF_FLEETS)
    check_target(json_to, fleet)
    with telling() as tell:
        mix = recommended_fleet(fleet, cards, prices, available, tell)
    deliver(json_to, mix.to_json, lambda: show(console(), mix), lambda: keep(mix))


def _recommend_plan(model: str, gpu: str, json_to: str | None, **terms: Any) -> None:
    from onnxperf.decide.plans import divisions, keep
    from onnxperf.ground.output import telling
    from onnxperf.ground.tables import console
    from onnxperf.views.plans import show

    if terms["parallel"] is not None:
        raise UsageError("--gpus ranks all plans: leave --parallel out")
    with telling() as tell:
        plans = divisions(asked_of(model, json_to, gpu=gpu, **terms), gpu, terms["gpus"], tell)
    deliver(json_to, plans.to_json, lambda: show(console(), plans), lambda: keep(plans))


@command()
@click.argument("model", type=click.Path())
@of_one
@click.option("--json", "json_to", metavar="FILE|-", help="Write everything as JSON; - prints JSON only.")
@debug
def whatif(model: str, gpu: str, json_to: str | None, **terms: Any) -> None:
    """Predict the speedup of changes to MODEL.

    Tried are other precisions, runtimes and batches, a CUDA graph, fewer operators on the CPU, fusions that nearly
    matched, padded dimensions, and leaving out each module.

    \b
    Examples:
      onnxperf whatif resnet50.onnx --gpu t4
      onnxperf whatif bert.onnx --gpu l4 --dim sequence=128 --precision fp16
    """
    from onnxperf.answer.prediction import summarise
    from onnxperf.decide.what_if import what_if
    from onnxperf.ground.tables import console
    from onnxperf.running.pipeline import read_once, run_of, with_batch
    from onnxperf.views.choices import show_what_ifs

    request = read_once(asked_of(model, json_to, gpu=gpu, **terms))
    changes = what_if(summarise(run_of(request, gpu)), lambda n: summarise(run_of(with_batch(request, n), gpu)))
    deliver(json_to, changes.to_json, lambda: show_what_ifs(console(), changes))


@command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@debug
def gpus(name: str | None, as_json: bool) -> None:
    """List the cards, or the specs of one with their sources.

    \b
    Examples:
      onnxperf gpus
      onnxperf gpus l4
    """
    import gpu_specs
    from onnxperf.ground.tables import console
    from onnxperf.running.pipeline import find
    from onnxperf.views import cards

    json_to = "-" if as_json else None
    if name is None:
        devices = [find(id)[0] for id in gpu_specs.ids()]
        every = [cards.as_json(d) for d in devices]
        deliver(json_to, lambda: json.dumps(every, indent=2), lambda: cards.show_gpus(console(), devices))
        return
    device, notes = find(name)
    for note in notes:
        click.echo(note.message, err=True)
    deliver(json_to, lambda: json.dumps(cards.as_json(device), indent=2), lambda: cards.show_gpu(console(), device))
