"""The command for language models that generate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from onnxperf.cli.arguments import AS_JSON, BATCHES, DECODER_FILES, debug, files_read, loaded, of_a_decoder, of_requests
from onnxperf.cli.sections import command
from onnxperf.graph.targets import check_targets
from onnxperf.ground.output import deliver, telling


@command()
@click.argument("model", type=click.Path(), required=False)
@of_requests
@loaded
@BATCHES(help="Batch sizes: 1..64 doubles from 1 to 64; or a list, 1,2,4. With --qps the largest is how many requests"
              " the server runs at a time.  [default: 1..64; with --qps 1..256]")  # fmt: skip
@click.option("--html", "html_to", metavar="FILE", help="Write an HTML report, which needs no network.")
@click.option("--trace", "trace_to", metavar="FILE.json",
              help="Write a prefill and a decode step as a timeline for ui.perfetto.dev.")  # fmt: skip
@click.option("--plot", "plot_to", metavar="FILE.png|.svg", help="Draw latency against throughput.")
@AS_JSON
@click.option("--parallel", metavar="tp=4|dp=2,tp=4|...",
              help="Parallelism over several GPUs: tp tensor, dp data (--batch is over all GPUs), pp=2:microbatches=2"
                   " pipeline, ep expert.  [default: one GPU]")  # fmt: skip
@of_a_decoder
@debug
def llm(
    model: str | None, gpu: str, json_to: str | None, plot_to: str | None, html_to: str | None, trace_to: str | None,
    **asked: Any,
) -> None:  # fmt: skip
    """Predict TTFT, TPOT, throughput and memory of a language model.

    TTFT is the time to first token: the prefill of the prompt, or of its chunks. TPOT is the time per output token: a
    decode step, predicted for the shortest, middle and longest context and interpolated between.

    MODEL is a decoder that takes its KV cache as inputs, with dynamic lengths. With --config the graph is built without
    weights, as ONNX Runtime GenAI's model builder does for CUDA. Families: Llama up to 4, Mistral (Mixtral, Ministral),
    Phi up to 4, Qwen 2 to 3.5 and Next, Gemma up to 4, GLM-4 and 5, gpt-oss, DeepSeek up to V3.2, Kimi-K2, MiniMax-M2,
    GPT-2, StarCoder, OPT, Falcon, GPT-NeoX, StableLM, Cohere, Nemotron, Granite up to 4, OLMo 2 and 3, EXAONE, SmolLM3,
    Seed-OSS, ERNIE-4.5, dots1, and with recurrent states Mamba, Mamba-2, Jamba, Nemotron-H. Of a multimodal model it is
    the text decoder. The type is --precision, or that of the config, where float32 becomes 16 bits.

    --batch, --prompt and --output decide the shapes of token ids, positions, masks and caches; --dim and --shapes set
    those of other inputs.

    The line accuracy says whether generation was measured under this engine on this card: closed loops of vLLM, SGLang
    and TensorRT-LLM on H100 and H200; of ONNX Runtime, prefills and decode steps of Llama-2-7B on an A100, not whole
    generations.

    With --qps a server with continuous batching is simulated. Requests arrive at random, and the server runs up to the
    largest --batch at a time, 256 by default: --batch 1 is a server of one. Each iteration decodes one token per
    request and fills up with prefill to --chunk tokens. A request is admitted if the KV cache has room for all its
    tokens.

    With --concurrency the same server has N requests at all times, as from vllm bench serve --max-concurrency,
    genai-perf or InferenceX. Several N give a curve, which --plot draws as tokens/s per user against tokens/s per GPU.

    --engine vllm, sglang or trtllm serves the model of --config as that engine does: its scheduler and memory, CUDA
    graphs for decode steps, its all-reduce of small messages, fused GEMMs, time of its host, and weights in the
    format of the config's quantization_config. --precision fp8 then quantises GEMMs, and attention stays in 16 bits.

    --cached, --draft and --pools are formulas on the same runs; none of them was measured. The cached share of a prompt
    is not computed again, and the rest attends to it. With --draft a step is K runs of the draft model and one of MODEL
    with K + 1 tokens per sequence, which yields (1 - a^(K+1)) / (1 - a) tokens, a being --accept (Leviathan et al.
    2023). With --pools 1:2 one instance runs prefill and sends KV caches to two instances that decode without being
    interrupted by prompts; tokens/s are then those of all instances.

    \b
    Examples:
      onnxperf llm decoder.onnx --gpu h100 --prompt 2048 --output 256 --batch 1..64
      onnxperf llm --config config.json --gpu h100 --weights int4 --precision fp16
      onnxperf llm decode.onnx --prefill prompt.onnx --gpu a100 --batch 1,8 --chunk 512
      onnxperf llm --config config.json --gpu h100 --qps 4 --prompt-lengths lognormal:2048:0.5 --prune-lm-head
      onnxperf llm --config config.json --gpu h100 --engine vllm --concurrency 1..256 --plot pareto.svg
      onnxperf llm --config config.json --gpu h100 --engine vllm --draft small/config.json --accept 0.7
      onnxperf llm --config config.json --gpu h100 --engine vllm --parallel tp=2 --pools 1:2 --concurrency 1..256
      onnxperf llm --config config.json --gpu h100 --batch 1..64 --html report.html --trace steps.json
    """
    from onnxperf.ground.tables import console
    from onnxperf.language.arrivals import RUNNING
    from onnxperf.language.decoding import decoding_of
    from onnxperf.views.llm import check_plot, plot, show

    sources = files_read({"gpu": gpu, **asked}, model, *(asked[name] for name in DECODER_FILES))
    targets = {"--json": json_to, "--html": html_to, "--trace": trace_to, "--plot": plot_to}
    check_targets(targets, *sources)
    if plot_to is not None:
        check_plot(plot_to)
    with telling() as tell:
        answer = decoding_of(model, asked).generation(gpu, f"1..{64 if asked['qps'] is None else RUNNING}", tell)
    files: dict[str | None, Callable[[], str | bytes]] = {
        html_to: answer.to_html,
        trace_to: lambda: answer.to_trace() + "\n",
        plot_to: lambda: plot(str(plot_to), answer),
    }
    deliver(
        json_to,
        answer.to_json,
        lambda: show(console(), answer),
        files={to: content for to, content in files.items() if to},
    )
