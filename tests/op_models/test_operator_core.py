"""Registering rules, and the bytes every rule starts from."""

from __future__ import annotations

import ast
import inspect
import sys
from typing import Any

import pytest

import op_models
from op_models import Operator, OpModelError, Pointwise, Tensor, Work, known, op, work, work_of
from op_models.rules import _RULES


def test_registering_twice_raises() -> None:
    before = dict(_RULES)
    with pytest.raises(OpModelError, match="Conv has a rule already"):

        @op("Conv")
        def another(op: Operator) -> Work:
            return work(op, Pointwise(1))

    assert before == _RULES


def test_unknown_operator_costs_its_bytes(make: Any) -> None:
    found = work_of(make("my.domain::Mystery", [(4, 8), (8,)], (4, 2)))
    assert not known("my.domain::Mystery")
    assert found == Work(Pointwise(8), "float32", "fp32", 4 * (32 + 8), 4 * 8, 0)


def test_unknown_operator_without_elements_is_still_one(make: Any) -> None:
    assert work_of(make("my.domain::Mystery", [(0,)])).size == Pointwise(1)


def test_operand_used_twice_is_read_once() -> None:
    x = Tensor("x", "float16", (10,))
    found = work_of(Operator("n", "Mul", (x, x), (Tensor("y", "float16", (10,)),)))
    assert (found.bytes_read, found.bytes_written, found.vector_flops) == (20, 20, 10)
    assert (found.dtype, found.pipe) == ("float16", "fp16")


def test_operand_read_partly_and_whole_counts_whole() -> None:
    x = Tensor("x", "float32", (10,))
    assert work_of(Operator("n", "CastLike", (x, x), (Tensor("y", "float32", (10,)),))).bytes_read == 40


def test_weight_bytes_are_the_stored_part_of_what_is_read() -> None:
    table = Tensor("table", "float32", (1000, 8), "weight")
    ids = Tensor("ids", "int64", (3,))
    found = work_of(Operator("n", "Gather", (table, ids), (Tensor("y", "float32", (3, 8)),)))
    assert (found.weight_bytes, found.bytes_read) == (3 * 8 * 4, 3 * 8 * 4 + 3 * 8)


def test_sub_byte_tensors_are_packed() -> None:
    assert Tensor("w", "int4", (3, 3)).bytes == 5
    w = Tensor("w", "int4", (100, 3), "weight")
    found = work_of(Operator("n", "Gather", (w, Tensor("i", "int32", (1,))), (Tensor("y", "int4", (1, 3)),)))
    assert (found.bytes_read, found.bytes_written) == (2 + 4, 2)


@pytest.mark.parametrize("name", sorted(_RULES))
def test_every_rule_says_what_it_counts(name: str) -> None:
    rule = inspect.unwrap(_RULES[name])
    assert rule.__doc__ and len(rule.__doc__.splitlines()) <= 2
    assert rule.__module__.startswith("op_models.")


def test_families_import_the_standard_library_only() -> None:
    members = inspect.getmembers(op_models, inspect.ismodule)
    modules = [m for _, m in members if m.__name__.startswith("op_models.")]
    assert {m.__name__ for m in modules} >= {"op_models.core", "op_models.conv", "op_models.attention"}
    for module in modules:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.partition(".")[0] in sys.stdlib_module_names | {"op_models"}, (module, name)
