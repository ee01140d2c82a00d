"""What the site has beside the pages in docs/: the reference, made from the code, and the repository's other pages.

MkDocs calls the functions here by their names (`hooks` of mkdocs.yml). A page of the repository stands under
`repository/` by its path, so that links between such pages hold; links between them and docs/ are turned; a link to a
file that is no page becomes its path, as the site has no files.
"""

from __future__ import annotations

import html
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import onnxperf
from onnxperf.cli import cli

ROOT = Path(__file__).parents[1]
REPOSITORY, COMMANDS, PYTHON = "repository", "reference", "reference/python.md"
#: Markdown that is no page of the site: the front page of the repository, and notes beside data.
LEFT_OUT = {"README.md", "tests/data/README.md"}
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)#\s:]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> None:
    """List the pages that are made here."""
    (reference,) = (part["Reference"] for part in config.nav if "Reference" in part)
    commands = [{f"onnxperf {name}": f"{COMMANDS}/{name}.md"} for name, _ in commands_of(cli)]
    reference[:0] = [{"Commands": commands}, {"Python": PYTHON}]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here, and those of the repository."""
    for name, command in commands_of(cli):
        files.append(File.generated(config, f"{COMMANDS}/{name}.md", content=command_page(name, command)))
    files.append(File.generated(config, PYTHON, content=python_page()))
    for page in repository_pages():
        path = page.relative_to(ROOT).as_posix()
        files.append(File.generated(config, f"{REPOSITORY}/{path}", abs_src_path=str(page)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links so that they lead to pages of the site, and let a search find the pages in docs/ first."""
    uri = page.file.src_uri
    if uri.startswith(REPOSITORY):
        page.meta["search"] = {"boost": 0.3}  # answers to questions come first
    folder = os.path.dirname(uri.removeprefix(f"{REPOSITORY}/") if uri.startswith(REPOSITORY) else f"docs/{uri}")

    def turned(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        path = os.path.normpath(os.path.join(folder, target))
        inside = path.removeprefix("docs/") if path.startswith("docs/") else f"{REPOSITORY}/{path}"
        if files.get_file_from_path(inside):
            return f"[{text}]({os.path.relpath(inside, os.path.dirname(uri))}{anchor})"
        return f"`{path}`" if os.path.basename(path).startswith(text) else f"{text} (`{path}`)"

    return LINK.sub(turned, markdown)


def repository_pages() -> Iterator[Path]:
    """Pages of the repository outside of docs/."""
    for part in ("*.md", "gpu_specs/**/*.md", "op_models/**/*.md", "onnxperf/**/*.md", "samples/*.md", "tests/*.md"):
        yield from (page for page in sorted(ROOT.glob(part)) if page.relative_to(ROOT).as_posix() not in LEFT_OUT)


def commands_of(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command with its name, those of a group behind it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield prefix + name, command


def command_page(name: str, command: click.Command) -> str:
    """What `--help` says of a command, as a page."""
    if isinstance(command, click.Group):
        parts = [part(f"onnxperf {name} {inner}", c, "##") for inner, c in commands_of(command)]
        return "\n".join([f"# onnxperf {name}\n", *described(command), *parts])
    return part(f"onnxperf {name}", command, "#")


def part(title: str, command: click.Command, level: str) -> str:
    """A command under a heading: how it is called, what it does, its options."""
    context = click.Context(command, info_name=title)
    lines = [f"{level} {title}\n", f"```text\n{command.get_usage(context)}\n```\n", *described(command)]
    for heading, records in sections(command, context).items():
        lines.append(f"{level}# {heading}\n")
        lines += (f"`{flags}`\n:   {escaped(help)}\n" for flags, help in records)
    return "\n".join(lines)


def described(command: click.Command) -> list[str]:
    """The help text of a command; examples, whose lines click is told to keep, as code."""
    blocks = inspect.cleandoc(command.help or "").split("\n\n")
    paragraphs = (block for block in blocks if block.strip())
    return [example(p) if p.startswith("\b") else f"{escaped(p)}\n" for p in paragraphs]


def example(block: str) -> str:
    """A block of examples."""
    title, *lines = block.removeprefix("\b\n").splitlines()
    return "\n".join([f"**{title.rstrip(':')}**\n", "```sh", *(line.strip() for line in lines), "```\n"])


def sections(command: click.Command, context: click.Context) -> dict[str, list[tuple[str, str]]]:
    """Options by section, as `--help` lists them: click's formatter is asked to collect instead of to write."""
    formatter = Collector()
    command.format_options(context, formatter)
    return formatter.sections


class Collector(click.HelpFormatter):
    """Keeps what it is told to write."""

    def __init__(self) -> None:
        super().__init__()
        self.sections: dict[str, list[tuple[str, str]]] = {}

    def write_heading(self, heading: str) -> None:
        """Begin a section."""
        self.sections[heading] = []

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        """Keep the rows of a section."""
        self.sections[next(reversed(self.sections))] += rows


def escaped(text: str) -> str:
    """Text in which Markdown sees neither emphasis, links nor HTML; what stands between backticks stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([*_\[\]#])", r"\\\1", html.escape(part, quote=False)) for part in parts[::2]]
    return "".join(parts)


def python_page() -> str:
    """Everything that `import onnxperf` offers: signatures and docstrings."""
    public = {name: getattr(onnxperf, name) for name in onnxperf.__all__ if not name.startswith("__")}
    kinds = {"Functions": inspect.isfunction, "Classes": lambda x: inspect.isclass(x) and not error(x), "Errors": error}
    lines = ["# Python\n", "What `import onnxperf` offers; `help(onnxperf.predict)` says the same.\n"]
    for title, belongs in kinds.items():
        lines.append(f"## {title}\n")
        for name, thing in sorted(public.items()):
            if belongs(thing):
                lines += entry(name, thing)
    return "\n".join(lines)


def error(thing: Any) -> bool:
    """Whether something is an exception."""
    return inspect.isclass(thing) and issubclass(thing, Exception)


def entry(name: str, thing: Any, level: str = "###") -> Iterator[str]:
    """A function or class, and the public methods of a class."""
    yield f"{level} {name}\n"
    if not error(thing):
        yield f"```python\n{signature(name, thing)}\n```\n"
    yield docstring(thing)
    if inspect.isclass(thing) and not error(thing):
        for inner, member in vars(thing).items():
            documented = inspect.getdoc(member) if inspect.isfunction(member) or isinstance(member, property) else None
            if documented and not inner.startswith("_"):
                call = inner if isinstance(member, property) else signature(inner, member)
                yield f"```python\n{call}\n```\n"
                yield docstring(member)


def docstring(thing: Any) -> str:
    """The docstring of something; lines that begin with the name of a parameter are a list."""
    names = inspect.signature(thing).parameters if inspect.isfunction(thing) else ()
    lines: list[str] = []
    for line in (inspect.getdoc(thing) or "").splitlines():
        name, colon, rest = line.partition(": ")
        if colon and name in names:
            lines += [*([] if lines and lines[-1].startswith("- ") else [""]), f"- `{name}`: {escaped(rest)}"]
        elif lines and lines[-1].startswith("- ") and line:
            lines[-1] += f" {escaped(line)}"
        else:
            lines.append(escaped(line))
    return "\n".join(lines) + "\n"


def signature(name: str, thing: Any) -> str:
    """How something is called, a parameter a line where one line is too long."""
    try:
        parts = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    parameters = [str(p) for p in parts.parameters.values() if p.name != "self"]
    text = f"{name}({', '.join(parameters)})"
    if len(text) > 80:
        text = "\n".join([f"{name}(", *(f"    {p}," for p in parameters), ")"])
    return re.sub(r": '([^']*)'", r": \1", text)  # annotations are text, which is shown without quotes
