"""Commands whose help lists their options by what they are for."""

from __future__ import annotations

from functools import partial

import click

#: Options that several commands have, by their names there. What a command alone has stands first, under Options.
SECTIONS = {
    "Language models": (
        "config", "prefill", "engine", "prompt", "output", "chunk", "cached", "weights", "cache", "prune_lm_head",
        "draft", "accept", "draft_tokens", "concurrency", "pools", "prompt_lengths", "output_lengths", "requests",
        "seed", "token_s", "first_s",
    ),
    "Where it runs": (
        "gpu", "every", "capacity_bytes", "generation", "prices", "runtime", "ort_version", "opt_level",
        "ort_transformers", "host", "gpus", "parallel", "cluster", "power_mode", "power_limit_W", "clock_Hz",
    ),
    "What is run": (
        "batch", "batches", "fit", "shapes", "dims", "fix_dims", "trip_counts", "precision", "layout",
        "compile_mode", "mode", "loss", "optimizer", "recompute", "accumulate",
    ),
    "How it is run": ("streams", "cuda_graph", "include_transfers", "pageable", "method"),
    "Limits": ("max_latency", "max_memory", "fail_above"),
    "Output": (
        "json_to", "html_to", "out", "markdown", "detail", "top", "depth", "first_run", "plot_to", "trace_to",
        "netron_to", "model_explorer_to", "profile_to", "debug", "help",
    ),
}  # fmt: skip
FEW = 16  # options that need no sections


class Sectioned(click.Command):
    """A command that lists many options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, each once."""
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        records = {option.opts[-1]: option.get_help_record(ctx) for option in options}
        if len(records) <= FEW:
            super().format_options(ctx, formatter)
            return
        flags = {option.name: option.opts[-1] for option in options} | {"help": "--help"}
        sections = {title: [flags[name] for name in names if name in flags] for title, names in SECTIONS.items()}
        shared = {flag for listed in sections.values() for flag in listed}
        for title, listed in {"Options": [flag for flag in records if flag not in shared], **sections}.items():
            if rows := [record for flag in listed if (record := records[flag]) is not None]:
                with formatter.section(title):
                    formatter.write_dl(rows)


command = partial(click.command, cls=Sectioned)
