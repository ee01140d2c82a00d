"""Commands that choose: which card there is, which of them, which batch, how many of them."""

from __future__ import annotations

import json
from typing import Any

import click

from onnxperf.cli.arguments import DURATION, Number, debug, of_cards, of_one, read_option
from onnxperf.cli.asking import asked_of
from onnxperf.ground.errors import UsageError
from onnxperf.ground.names import RANKED_BY
from onnxperf.ground.output import deliver


@click.command()
@click.argument("model", type=click.Path())
@of_cards
@click.option(
    "--by", type=click.Choice(RANKED_BY), default="latency", show_default=True, help="What cards are ranked by."
)
@read_option("--max-latency", "limit_s", read=DURATION, metavar="20ms", help="Take no batch that is slower.")
@debug
def compare(
    model: str, gpu: tuple[str, ...], every: bool, capacity_bytes: float | None, generation: str | None,
    prices: dict[str, float], json_to: str | None, by: str, limit_s: float | None, **terms: Any,
) -> None:  # fmt: skip
    """Predict MODEL on several cards, and rank them.

    Latency and memory are of the batch that is asked for, the rest of the batch with the most samples a second. Cards
    whose intervals overlap tie.

    \b
    Examples:
      onnxperf compare resnet50.onnx --gpu t4,l4,a10g,a100,h100
      onnxperf compare bert.onnx --all --gpu-memory 24GB --by cost --max-latency 20ms --dim sequence=128
    """
    from onnxperf.decide.choices import priced, selected
    from onnxperf.decide.compare import compared
    from onnxperf.ground.output import telling
    from onnxperf.ground.tables import console
    from onnxperf.views.choices import show_comparison

    cards, price_by_card = selected(gpu, every, capacity_bytes, generation), priced(prices)
    with telling() as tell:
        comparison = compared(asked_of(model, json_to, gpu=gpu, **terms), cards, by, limit_s, price_by_card, tell)
    deliver(json_to, comparison.to_json, lambda: show_comparison(console(), comparison))


@click.command()
@click.argument("model", type=click.Path())
@click.option("--latency-ms", type=Number(), metavar="MS", help="The mean latency of a request to keep.")
@click.option("--qps", type=Number(), metavar="N", help="Requests of one sample a second.")
@of_cards
@debug
def recommend(
    model: str, latency_ms: float | None, qps: float | None, gpu: tuple[str, ...], every: bool,
    capacity_bytes: float | None, generation: str | None, prices: dict[str, float], json_to: str | None, **terms: Any,
) -> None:  # fmt: skip
    """Find the cheapest card, batch and number of replicas that serve MODEL; without --gpu of all cards with a price.

    With --gpus: rank the plans by which so many of one card divide a run, instead of --latency-ms and --qps.
    The exit code is 1 where no card keeps the latency, or no plan fits.

    \b
    Examples:
      onnxperf recommend resnet50.onnx --latency-ms 10 --qps 500
      onnxperf recommend gpt3-xl.onnx --gpu a100 --gpus 8 --batch 16 --dim sequence=1024
      onnxperf recommend bert.onnx --latency-ms 20 --qps 2000 --gpu t4,l4,a10g --price l4=0.60 --precision fp16
    """
    from onnxperf.decide.choices import priced, selected
    from onnxperf.decide.recommend import keep, recommended
    from onnxperf.ground.output import telling
    from onnxperf.ground.tables import console
    from onnxperf.running.largest import limits_of
    from onnxperf.views.choices import show_recommendation

    if terms["gpus"] is not None:
        if latency_ms is not None or qps is not None or every or capacity_bytes or generation or len(gpu or ()) != 1:
            raise UsageError("--gpus ranks plans for one card: give --gpu CARD, and no limits or other cards")
        _recommend_plan(model, gpu[0], json_to, **terms)
        return
    if latency_ms is None or qps is None:
        raise UsageError("recommend takes --latency-ms and --qps, or --gpus with --gpu")
    price_by_card = priced(prices)
    named = gpu or (() if every else tuple(price_by_card))
    cards = selected(named, every, capacity_bytes, generation)
    limit = limits_of(latency_ms, None, "--latency-ms").seconds or 0.0
    with telling() as tell:
        advice = recommended(asked_of(model, json_to, gpu=gpu, **terms), cards, limit, qps, price_by_card, tell)
    deliver(json_to, advice.to_json, lambda: show_recommendation(console(), advice), lambda: keep(advice))


def _recommend_plan(model: str, gpu: str, json_to: str | None, **terms: Any) -> None:
    from onnxperf.decide.plans import divisions, keep
    from onnxperf.ground.output import telling
    from onnxperf.ground.tables import console
    from onnxperf.views.plans import show

    if terms["parallel"] is not None:
        raise UsageError("--gpus without a plan ranks all of them: leave --parallel out")
    with telling() as tell:
        plans = divisions(asked_of(model, json_to, gpu=gpu, **terms), gpu, terms["gpus"], tell)
    deliver(json_to, plans.to_json, lambda: show(console(), plans), lambda: keep(plans))


@click.command()
@click.argument("model", type=click.Path())
@of_one
@click.option("--json", "json_to", metavar="FILE|-", help="Write everything as JSON; - prints JSON only.")
@debug
def whatif(model: str, gpu: str, json_to: str | None, **terms: Any) -> None:
    """Predict what each change would bring to MODEL on a card: another precision, runtime or batch, a CUDA graph, fewer
    operators on the CPU, fusions that nearly matched, padded dimensions, a module removed.

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


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@debug
def gpus(name: str | None, as_json: bool) -> None:
    """List the cards, or show every fact of one with its source.

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
