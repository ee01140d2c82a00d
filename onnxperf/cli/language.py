"""The command for language models that generate."""

from __future__ import annotations

from typing import Any

import click

from onnxperf.cli.arguments import AS_JSON, Count, Number, debug, files_read, of_a_decoder, read_option
from onnxperf.cli.lists import parse_batch_range
from onnxperf.graph.targets import check_targets
from onnxperf.ground.names import CACHES, WEIGHTS
from onnxperf.ground.output import deliver, telling


@click.command()
@click.argument("model", type=click.Path(), required=False)
@click.option("--config", type=click.Path(), metavar="config.json",
              help="Instead of MODEL: make its graph from Hugging Face's configuration.")  # fmt: skip
@click.option("--prefill", type=click.Path(), metavar="FILE.onnx",
              help="The model that takes the prompt, where MODEL takes one token only.")  # fmt: skip
@click.option("--prompt", type=Count(1, 1 << 24), default=2048, show_default=True, help="Tokens of a prompt.")
@click.option("--output", type=Count(2, 1 << 24), default=256, show_default=True, help="Tokens that are generated.")
@read_option("--batch", "batch", read=parse_batch_range, metavar="1..64", default="1..64", show_default=True,
             help="Batches: 1..64 doubles from 1 to 64; or a list such as 1,2,4.")  # fmt: skip
@click.option("--chunk", type=Count(1, 1 << 24), metavar="N", help="Tokens of the prompt in one run.  [default: all]")
@click.option("--weights", type=click.Choice(WEIGHTS),
              help="With --config: weights of products, as MatMulNBits in blocks of 32.")  # fmt: skip
@click.option("--cache", type=click.Choice(CACHES),
              help="With --config: keys and values that are kept.  [default: as activations]")  # fmt: skip
@click.option(
    "--prune-lm-head",
    is_flag=True,
    help="With --config: logits of the last position alone, as serving engines compute them.",
)
@click.option("--qps", type=Number(), metavar="N", help="Simulate so many requests a second, batched continuously.")
@click.option("--prompt-lengths", metavar="lognormal:2048:0.5",
              help="Of requests: median, deviation of the logarithm; uniform:1:99.  [default: --prompt]")  # fmt: skip
@click.option("--output-lengths", metavar="uniform:16:512", help="The same of what is generated.  [default: --output]")
@click.option("--requests", type=Count(1, 100_000), default=1000, show_default=True, help="How many are simulated.")
@click.option("--seed", type=Count(0), default=0, show_default=True, help="Another one draws other requests.")
@click.option("--plot", "plot_to", metavar="FILE.png|.svg", help="Draw latency against throughput.")
@AS_JSON
@click.option("--parallel", metavar="tp=4|dp=2,tp=4|...",
              help="How several GPUs divide it: tp matrices, heads and cache; dp the batch, which is that of all GPUs;"
                   " pp=2:microbatches=2 layers; ep experts, and the batch.  [default: one GPU]")  # fmt: skip
@of_a_decoder
@debug
def llm(
    model: str | None, gpu: str, json_to: str | None, plot_to: str | None, prompt: int, output: int, chunk: int | None,
    batch: tuple[int, ...], **asked: Any,
) -> None:  # fmt: skip
    """Predict how a language model generates: time to the first token, time of each further one, throughput, memory.

    MODEL is a decoder with inputs for past keys and values, its lengths open. With --config the graph is made without
    weights as ONNX Runtime GenAI's model builder does for CUDA, for Llama until 4, Mistral, Mixtral, Phi-3 and 4, Qwen
    2 and 3, Gemma until 3, GLM-4, gpt-oss and DeepSeek until V3, whose cache holds latent vectors, as serving engines
    keep it; its type is --precision, or that of the configuration. Of a model that also takes images it
    is the decoder of text.

    The first token takes a run of the prompt, or of its chunks; each further one a run of one token, predicted for the
    shortest, middle and longest context and interpolated between. No measurement confirms whole generations. Of single
    runs, 12 were measured by others, of Llama-2-7B at batch 4 on an A100 in FP16 (ONNX Runtime 1.16, prompts of 16 to
    3840): the graph made from its config.json is off by 3% on average in steps of one token, by at most 5%, and by 9%
    in prompts, by at most 14%; all are inside the ranges.

    With --qps requests arrive at random, as many as the largest batch run at a time, and an iteration gives each of
    them a token and takes as much of waiting prompts as --chunk leaves, 2048 tokens by default. Requests are admitted
    while the cache has room for all their tokens; iterations are interpolated from predicted runs.

    \b
    Examples:
      onnxperf llm decoder.onnx --gpu h100 --prompt 2048 --output 256 --batch 1..64
      onnxperf llm --config config.json --gpu h100 --weights int4 --precision fp16
      onnxperf llm decode.onnx --prefill prompt.onnx --gpu a100 --batch 1,8 --chunk 512
      onnxperf llm --config config.json --gpu h100 --qps 4 --prompt-lengths lognormal:2048:0.5 --prune-lm-head
    """
    from onnxperf.ground.tables import console
    from onnxperf.language.core import generation, steps_of, traffic
    from onnxperf.language.generation import Lengths
    from onnxperf.running.pipeline import Request
    from onnxperf.views.llm import check_plot, plot, show

    construction = {name: asked.pop(name) for name in ("config", "prefill", "weights", "cache", "prune_lm_head")}
    sources = files_read({"gpu": gpu, **asked}, model, construction["config"], construction["prefill"])
    check_targets({"--json": json_to, "--plot": plot_to}, *sources)
    if plot_to is not None:
        check_plot(plot_to)
    arrive = [asked.pop(name) for name in ("qps", "prompt_lengths", "output_lengths", "requests", "seed")]
    request = Request(b"", dims=asked.pop("dims"), trip_counts=asked.pop("trip_counts"), terms=asked)
    steps, positions = steps_of(model, gpu, request, **construction)
    lengths = Lengths(prompt, output, chunk, positions)
    requests = traffic(lengths, *arrive)
    with telling() as tell:
        answer = generation(steps, lengths, batch, construction["weights"], requests, tell, construction["cache"])
    if plot_to is not None:
        plot(plot_to, answer)
    deliver(json_to, answer.to_json, lambda: show(console(), answer))
