"""The command line. stdout is data, stderr is for people; exit codes are on the exception classes."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

import click

from onnxperf.cli.arguments import debug
from onnxperf.ground.errors import INTERRUPTED, EnvironmentFailure, Error, UsageError, printable
from onnxperf.ground.modules import unloadable
from onnxperf.ground.output import prepare_streams, settle_streams
from onnxperf.ground.signals import ENDINGS, ImportedWhole
from onnxperf.ground.version import VERSION

BUG = 70
REPORT_TO = "the project's issue tracker"


#: The commands of each module here, which is imported when one of them is asked for.
_COMMANDS = {
    "predictions": ("predict", "diff", "explain"),
    "checking": ("check",),
    "decisions": ("gpus", "compare", "recommend", "whatif"),
    "sweeping": ("sweep",),
    "language": ("llm",),
    "assistant": ("mcp",),
    "models": ("export", "strip"),
    "on_device": ("measure", "validate", "calibrate"),
}
MODULES = {command: module for module, commands in _COMMANDS.items() for command in commands}


class Commands(click.Group):
    """The commands of `MODULES`: a prediction does not import what a sweep needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in order."""
        return sorted(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name; None where there is none."""
        if cmd_name not in MODULES:
            return None
        command: click.Command = getattr(import_module(f"onnxperf.cli.{MODULES[cmd_name]}"), cmd_name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments, where none is an option and the name of a file alike: a pattern such as *.onnx gives names."""
        both = [] if "--" in args else [a for a in args if a.startswith("-") and a != "-" and os.path.lexists(a)]
        if both:
            raise UsageError(f"{both[0]} is an option, and the name of a file here: write -- between options and files")
        return super().parse_args(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="onnxperf")
@debug
def cli() -> None:
    """Predict how long an ONNX model takes on a GPU, without having the GPU.

    \b
    Example:
      onnxperf predict model.onnx --gpu l4
    """


def main() -> NoReturn:
    """Run the command line and exit with the code that design and help promise."""
    with suppress(OSError):  # stderr itself may be full
        code = BUG
        code, sentence = outcome(_run)
        if sentence:
            click.echo(sentence, err=True)
    settle_streams()
    sys.exit(code)


def _run() -> None:
    for ending in ENDINGS:  # each ends as Ctrl-C does: what was measured is kept, temporary files are not
        if signal.getsignal(ending) is signal.SIG_DFL:  # nohup has one ignored
            signal.signal(ending, signal.default_int_handler)
    ImportedWhole.install("numpy", "onnx")
    prepare_streams()
    gc.set_threshold(50_000, 20, 20)  # a model is many objects that stay, and that Python need not look through
    cli.main(prog_name="onnxperf", standalone_mode=False)
    sys.stdout.flush()


def outcome(run: Callable[[], None]) -> tuple[int, str]:
    """The exit code of what is run, and a sentence for people where it fails."""
    try:
        run()
    except (BrokenPipeError, SystemExit):  # whoever reads has enough; click and rich then exit by themselves
        return 0, ""
    except click.ClickException as e:
        return UsageError.exit_code, _told(e)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    except Error as e:
        return e.exit_code, f"onnxperf: {printable(str(e))}"
    except MemoryError:
        return EnvironmentFailure.exit_code, "onnxperf: not enough memory for this model"
    except OSError as e:
        what = f"can't use {e.filename}" if e.filename else "can't write the answer"
        return EnvironmentFailure.exit_code, f"onnxperf: {printable(f'{what}: {e.strerror or e}')}"
    except Exception as e:
        broken = unloadable(e)
        if "--debug" in sys.argv:
            return UsageError.exit_code if broken else BUG, traceback.format_exc().rstrip()
        if broken:
            return UsageError.exit_code, f"onnxperf: {printable(broken)}"
        last = traceback.extract_tb(e.__traceback__)[-1]
        what = printable(f"{type(e).__name__}: {str(e)[:200]}, in {last.filename}, line {last.lineno}")
        ours = f"this is a bug of ours, unless that file is yours ({what})"
        return BUG, f"onnxperf: {ours}; please report it to {REPORT_TO}, with --debug"
    return 0, ""


def _told(e: click.ClickException) -> str:
    """What click says of arguments that are wrong, in a line; the help where it shows that for want of any."""
    says, context = e.format_message(), getattr(e, "ctx", None)
    if type(e).__name__ == "NoArgsIsHelpError":  # older versions of click have none
        return says
    command = context.command_path if context else "onnxperf"
    if isinstance(e, click.NoSuchOption) and e.option_name == "--gpus" and context and _divides(context.command):
        says = f"{context.info_name} takes no --gpus: --parallel tp=2 is for 2 GPUs"
    return f"onnxperf: {printable(' '.join(says.split())).rstrip('.')}; see {command} --help"


def _divides(command: click.Command) -> bool:
    """Whether a command takes a plan for several GPUs."""
    return any("--parallel" in option.opts for option in command.params)
