"""The terms of a prediction: what is made of each, and that no value of one is a crash."""

from __future__ import annotations

import inspect
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from onnx import parser

import onnxperf
from onnxperf.cli import cli
from onnxperf.cli.sweeping import parse_precisions
from onnxperf.running.terms import TERMS, Terms, as_terms, check_values, unusual
from tests.decide.models import net

SMALL = '<ir_version: 9, opset_import: ["" : 20]> g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }'
#: What nobody means.
ODD: tuple[Any, ...] = (0, -1, 1.5, True, "", "nothing", b"l4", [], np.zeros(3), object, Path("nowhere"), float("nan"))
TEXTS = ("ort_version", "parallel", "power_mode")  # read where they are used


@pytest.mark.parametrize(("name", "value"), [*product(TERMS, ODD)], ids=str)
def test_no_value_is_a_crash(name: str, value: Any) -> None:
    model = parser.parse_model(SMALL)
    try:
        p = onnxperf.predict(model, gpu="l4", **{name: value})
        assert p.run.under(**{name: value} if not TERMS[name].again else {}).timeline.total_s[0] == p.seconds
    except onnxperf.UsageError as e:
        assert TERMS[name].flags[0] not in str(e)  # it speaks of arguments


@pytest.mark.parametrize("name", [name for name in TERMS if name not in TEXTS])
def test_a_value_of_another_type_is_told_by_the_term(name: str) -> None:
    term = TERMS[name]
    with pytest.raises(onnxperf.UsageError) as error:
        check_values({name: [object()]})
    assert (term.number or (term.noun if term.choices or term.file else name)) in str(error.value)


def test_help_spells_out_every_term_once() -> None:
    asked = inspect.signature(onnxperf.predict).parameters
    assert [*asked][-len(TERMS) :] == [*TERMS] and "terms" not in asked
    assert {name: asked[name].default or None for name in TERMS} == {n: t.default or None for n, t in TERMS.items()}
    lines = [line.split(":")[0].strip() for line in (onnxperf.predict.__doc__ or "").splitlines()]
    assert [line for line in lines if line in TERMS] == [*TERMS]
    assert max(map(len, (onnxperf.predict.__doc__ or "").splitlines())) <= 120


def test_what_is_not_asked_for_is_usual() -> None:
    assert unusual(Terms()) == []
    assert [term.name for term in unusual(Terms(streams=2, host="cloud"))] == ["streams", "host"]
    assert unusual(Terms(pageable=0)) == [TERMS["pageable"]]


@pytest.mark.parametrize("command", ["predict", "check", "diff", "explain", "compare", "recommend", "whatif", "sweep"])
def test_commands_take_every_term(command: str) -> None:
    offered = cli.get_command(click.Context(cli), command)
    assert offered is not None
    options = {p.name: p for p in offered.params}
    assert all(options[name].opts == [*term.flags] for name, term in TERMS.items())


SIZED = ("predict", "check", "diff", "explain", "compare", "recommend", "whatif", "sweep", "llm", "measure", "validate")


@pytest.mark.parametrize("command", SIZED)
def test_commands_take_open_sizes_alike(command: str) -> None:
    """As --dim NAME=N and --shapes NAME:1x3, of every model that can have open dimensions; and several batches."""
    offered = cli.get_command(click.Context(cli), command)
    assert offered is not None
    options = {flag: p for p in offered.params for flag in p.opts}
    assert {"--dim", "--shapes", "--batch"} <= options.keys()
    assert [options[flag].multiple for flag in ("--dim", "--shapes")] == [True, True]
    if command in ("predict", "check", "sweep", "llm"):
        read = options["--batch"].process_value(click.Context(offered), "1..4")
        assert read == (1, 2, 4)


def test_a_keyword_that_is_no_term_is_refused_as_python_does() -> None:
    for door in (onnxperf.predict, onnxperf.whatif, onnxperf.llm, onnxperf.explain, onnxperf.compare, onnxperf.sweep):
        card: Any = ["l4"] if door in (onnxperf.compare, onnxperf.sweep) else "l4"
        for term in ("precison", "batches"):
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{term}'"):
                door(SMALL.encode(), gpu=card, **{term: "fp16"})


@pytest.mark.parametrize("name", [name for name, term in TERMS.items() if term.choices])
def test_the_case_of_a_choice_does_not_matter(name: str) -> None:
    for choice in TERMS[name].choices:
        for written in (choice.upper(), choice.title()):
            assert as_terms({name: written}) == {name: choice}
            (option,) = (p for p in cli.get_command(click.Context(cli), "predict").params if p.name == name)
            assert option.type.convert(written, option, None) == choice


def test_choices_in_capitals_answer_alike() -> None:
    low, high = (onnxperf.predict(net(), gpu="l4", **terms) for terms in (
        {"precision": "fp16", "layout": "nhwc", "runtime": "ort-cuda"},
        {"precision": "FP16", "layout": "NHWC", "runtime": "ORT-CUDA"},
    ))  # fmt: skip
    assert low == high
    assert onnxperf.compare(net(), gpu=["l4"], by="Energy") == onnxperf.compare(net(), gpu=["l4"], by="energy")
    rows = onnxperf.sweep(net(), gpu=["l4"], precision=["BF16", "Fp32"]).rows
    assert [row.precision for row in rows] == ["bf16", "fp32"]
    assert parse_precisions("FP16, Keep") == ("fp16", "keep")
    for command in (cli.get_command(click.Context(cli), name) for name in cli.list_commands(click.Context(cli))):
        for option in (p for p in command.params if isinstance(p.type, click.Choice)):
            assert not option.type.case_sensitive, (command.name, option.name)
