"""The command for language models that generate."""

from __future__ import annotations

from typing import Any

import click

from onnxperf.cli.arguments import AS_JSON, BATCHES, Count, Number, OneOf, debug, files_read, of_a_decoder
from onnxperf.cli.sections import command
from onnxperf.graph.targets import check_targets
from onnxperf.ground.names import CACHES, ENGINES, USUAL_ENGINE, WEIGHTS
from onnxperf.ground.output import deliver, telling

#: How requests arrive: the argument of `traffic` and the option.
ARRIVING = {"qps": "qps", "prompts": "prompt_lengths", "outputs": "output_lengths"}
ARRIVING |= {name: name for name in ("requests", "seed", "concurrency")}

#: What the runs are made of; the first three are files.
CONSTRUCTION = ("config", "prefill", "draft", "weights", "cache", "prune_lm_head", "engine", "accept", "draft_tokens")


@command()
@click.argument("model", type=click.Path(), required=False)
@click.option("--config", type=click.Path(), metavar="config.json",
              help="Instead of MODEL: build the graph from a Hugging Face config.")  # fmt: skip
@click.option("--prefill", type=click.Path(), metavar="FILE.onnx",
              help="The prefill model, if MODEL takes one token only.")  # fmt: skip
@click.option("--prompt", type=Count(1, 1 << 24), default=2048, show_default=True, help="Prompt length, tokens.")
@click.option("--output", type=Count(2, 1 << 24), default=256, show_default=True, help="Output length, tokens.")
@BATCHES(default="1..64", show_default=True, help="Batch sizes: 1..64 doubles from 1 to 64; or a list, 1,2,4.")
@click.option("--chunk", type=Count(1, 1 << 24), metavar="N", help="Chunked prefill: tokens per chunk.  [default: all]")
@click.option("--cached", type=Number(), metavar="0.5", default=0.0, show_default=True,
              help="Share of each prompt that is in the prefix cache.")  # fmt: skip
@click.option("--pools", metavar="1:2",
              help="Instances for prefill : for decode, each of the GPUs of --parallel.")  # fmt: skip
@click.option("--draft", type=click.Path(), metavar="config.json",
              help="With --config: the config of a draft model, for speculative decoding.")  # fmt: skip
@click.option("--accept", type=Number(), metavar="0.7",
              help="With --draft: how likely a proposed token is accepted.")  # fmt: skip
@click.option("--draft-tokens", type=int, metavar="K",
              help="With --draft: tokens proposed in a step.  [default: 4]")  # fmt: skip
@click.option("--weights", type=OneOf(WEIGHTS),
              help="With --config: weight-only quantisation, as MatMulNBits in blocks of 32.")  # fmt: skip
@click.option("--cache", type=OneOf(CACHES),
              help="With --config: type of the KV cache.  [default: as activations]")  # fmt: skip
@click.option("--engine", type=OneOf(ENGINES), default=USUAL_ENGINE, show_default=True,
              help="With --config: the engine that serves it.")  # fmt: skip
@click.option(
    "--prune-lm-head",
    is_flag=True,
    help="With --config: compute logits of the last position only, as serving engines do.",
)
@click.option(
    "--qps", type=Number(), metavar="N", help="Simulate serving at this request rate, with continuous batching."
)
@click.option("--concurrency", metavar="N|1,8,64|1..256",
              help="Simulate a closed loop of N requests, each replaced as it ends.")  # fmt: skip
@click.option("--prompt-lengths", metavar="lognormal:2048:0.5",
              help="Of requests: median and log standard deviation, or uniform:1:99.  [default: --prompt]")  # fmt: skip
@click.option(
    "--output-lengths",
    metavar="uniform:16:512",
    help="Output lengths of requests.  [default: --output; with --concurrency 3% around it]",
)
@click.option("--requests", type=Count(1, 100_000),
              help="Requests to simulate.  [default: 1000; with --concurrency 10 for each]")  # fmt: skip
@click.option("--seed", type=Count(0), default=0, show_default=True, help="Random seed of the requests.")
@click.option("--plot", "plot_to", metavar="FILE.png|.svg", help="Draw latency against throughput.")
@AS_JSON
@click.option("--parallel", metavar="tp=4|dp=2,tp=4|...",
              help="Parallelism over several GPUs: tp tensor, dp data (--batch is over all GPUs), pp=2:microbatches=2"
                   " pipeline, ep expert.  [default: one GPU]")  # fmt: skip
@of_a_decoder
@debug
def llm(
    model: str | None, gpu: str, json_to: str | None, plot_to: str | None, batch: tuple[int, ...],
    pools: str | None, **asked: Any,
) -> None:  # fmt: skip
    """Predict how a language model generates: time to first token (TTFT), time per output token (TPOT),
    throughput, memory.

    MODEL is a decoder with a KV cache as inputs, with dynamic lengths. With --config the graph is built without
    weights, as ONNX Runtime GenAI's model builder does for CUDA. Families: Llama up to 4, Mistral (Mixtral, Ministral),
    Phi up to 4, Qwen 2 to 3.5 and Next, Gemma up to 4, GLM-4 and 5, gpt-oss, DeepSeek up to V3.2, Kimi-K2, MiniMax-M2,
    GPT-2, StarCoder, OPT, Falcon, GPT-NeoX, StableLM, Cohere, Nemotron, Granite up to 4, OLMo 2 and 3, EXAONE, SmolLM3,
    Seed-OSS, ERNIE-4.5, dots1, and with states Mamba, Mamba-2, Jamba, Nemotron-H. Its type is --precision, or that of
    the config, 16 bits where that is float32. Of a multimodal model it is the text decoder.

    --batch, --prompt and --output decide the shapes of token ids, positions, masks and caches; --dim and --shapes set
    those of other inputs.

    TTFT is the prefill of the prompt or of its chunks. TPOT is a decode step of one token, predicted for the shortest,
    middle and longest context and interpolated between. Whole generations are not validated. Of single runs, 12 were
    measured by others: Llama-2-7B at batch 4 on an A100 in FP16 (ONNX Runtime 1.16, prompts of 16 to 3840). With the
    graph of its config.json the mean error is 3% for decode steps, at most 5%, and 9% for prefill, at most 14%; all are
    inside their intervals.

    With --qps a server with continuous batching is simulated: requests arrive at random, up to the largest --batch run
    concurrently, and each iteration decodes one token per request and fills up with prefill to --chunk tokens, 2048 by
    default. A request is admitted if the KV cache has room for all its tokens. Iteration times are interpolated. With
    --concurrency the same server gets N requests at all times, as from vllm bench serve --max-concurrency, genai-perf
    or InferenceX; several N give a curve, which --plot draws as tokens/s per user against tokens/s per GPU.

    --engine vllm, sglang or trtllm serves the model of --config as that engine does: its scheduler and memory, CUDA
    graphs for decode steps, its all-reduce of small messages, joined products, time of its host, and weights in the
    format of the config's quantization_config. --precision fp8 then quantises products, and attention stays in 16 bits.

    --cached, --draft and --pools are formulas on the same runs, not measured. The cached share of a prompt takes no
    run, and the rest attends to it. With --draft a step is K runs of the draft and one of MODEL with K + 1 tokens of
    each sequence, and gives (1 - a^(K+1)) / (1 - a) tokens, a being --accept (Leviathan et al. 2023). With --pools 1:2
    an instance for prefill gives first tokens and sends caches to two that decode, whose steps no prompt interrupts;
    tokens/s are then of all instances.

    \b
    Examples:
      onnxperf llm decoder.onnx --gpu h100 --prompt 2048 --output 256 --batch 1..64
      onnxperf llm --config config.json --gpu h100 --weights int4 --precision fp16
      onnxperf llm decode.onnx --prefill prompt.onnx --gpu a100 --batch 1,8 --chunk 512
      onnxperf llm --config config.json --gpu h100 --qps 4 --prompt-lengths lognormal:2048:0.5 --prune-lm-head
      onnxperf llm --config config.json --gpu h100 --engine vllm --concurrency 1..256 --batch 1 --plot pareto.svg
      onnxperf llm --config config.json --gpu h100 --engine vllm --draft small/config.json --accept 0.7
      onnxperf llm --config config.json --gpu h100 --engine vllm --parallel tp=2 --pools 1:2 --concurrency 1..256
    """
    from onnxperf.ground.tables import console
    from onnxperf.language.core import generation, steps_of, traffic
    from onnxperf.language.generation import Lengths
    from onnxperf.language.pools import parse_pools
    from onnxperf.running.pipeline import Request
    from onnxperf.views.llm import check_plot, plot, show

    construction = {name: asked.pop(name) for name in CONSTRUCTION}
    sources = files_read({"gpu": gpu, **asked}, model, *(construction[name] for name in CONSTRUCTION[:3]))
    check_targets({"--json": json_to, "--plot": plot_to}, *sources)
    if plot_to is not None:
        check_plot(plot_to)
    tokens = {name: asked.pop(name) for name in ("prompt", "output", "chunk", "cached")}
    arrive = {name: asked.pop(option) for name, option in ARRIVING.items()}
    bindings = {name: asked.pop(name) for name in ("dims", "shapes", "trip_counts")}
    request = Request(b"", **bindings, terms=asked)
    with telling() as tell:
        steps, positions = steps_of(model, gpu, request, **construction)
        lengths = Lengths(**tokens, positions=positions, block=steps.engine.block)
        requests = traffic(lengths, **arrive, engine=steps.engine)
        answer = generation(
            steps, lengths, batch, construction["weights"], requests, tell, construction["cache"], parse_pools(pools)
        )
    files = {} if plot_to is None else {plot_to: lambda: plot(plot_to, answer)}
    deliver(json_to, answer.to_json, lambda: show(console(), answer), files=files)
