"""How far closed loops are from measured servers: `python -m onnxperf.lab.served DATA`, of a folder like `shared/data`.

Rows are those of `llm/silicon.csv.gz` (ai-dynamo/aiconfigurator @095f58a, Apache-2.0) whose prompts and decode steps
share their GPUs: vLLM, SGLang and TensorRT-LLM at a constant number of requests. Each is predicted as `onnxperf llm
--engine E --concurrency N` answers without more options. Not known of them: lengths that vary (InferenceX draws prompts
and outputs from 0.8 to 1 of what a row says), prefix caches that hit, warm-up; expert parallelism and attention that is
divided by requests are taken as tensor parallelism on at most 8 GPUs. The widths of ranges are derived with each model
and each card left out in turn.

Fitted to these rows: step_s, request_s, launch_s and front_s of each engine and SPREAD to those of dense models;
launch_s, one figure for all engines, and routing_s to those of mixtures of experts as well.
"""

from __future__ import annotations
