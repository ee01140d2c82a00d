"""Lists of sizes: what they go on to, and what is wrong with those that don't."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxperf.ground.errors import UsageError
from onnxperf.ground.lists import MOST_SIZES, parse_batches, parse_dim, parse_sizes


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4", (4,)),
        ("1, 8,64", (1, 8, 64)),
        ("4,2", (4, 2)),
        ("1,2,4,...,32", (1, 2, 4, 8, 16, 32)),
        ("8,16,24, ... ,40", (8, 16, 24, 32, 40)),
        ("1,10,100,...,10000", (1, 10, 100, 1000, 10000)),
        ("1,2,3,...,3", (1, 2, 3)),
        ("1..8", (1, 2, 4, 8)),
        ("1..6", (1, 2, 4, 6)),
        (" 3..3 ", (3,)),
    ],
)
def test_a_list_goes_on_as_it_began(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_batches(text) == sizes


@given(st.integers(1, 50), st.integers(1, 9), st.integers(0, 20))
def test_steps_and_multiples_go_on_to_the_last(first: int, by: int, more: int) -> None:
    added = tuple(first + by * i for i in range(3 + more))
    assert parse_sizes(",".join([*map(str, added[:3]), "...", str(added[-1])]), "sizes") == added
    times = tuple(first * (by + 1) ** i for i in range(3 + more % 5))
    assert parse_sizes(",".join([*map(str, times[:3]), "...", str(times[-1])]), "sizes") == times


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4,2,...,256", "can't be extended: write three"),
        ("1,...", "can't be extended: write three"),
        ("1,2,...,256", "can't be extended: write three"),
        ("1,2,4,...", "can't be extended: write three"),
        ("1,2,4,...,8,...,16", "can't be extended: write three"),
        ("...,4", "can't be extended: write three"),
        ("4,2,1,...,256", "must grow by a constant factor"),
        ("2,2,2,...,256", "must grow by a constant factor"),
        ("1,2,5,...,100", "must grow by a constant factor"),
        ("1,2,4,...,100", "it continues with 64, 128"),
        ("1,2,4,...,2", "does not reach 2"),
        ("1,2,3,...,99999", f"{MOST_SIZES:,} are too many"),
        ("0,1", "is not a list of batches"),
        ("8..1", "ends before it starts"),
        ("0..8", "is not a list of batches"),
        ("1,,2", "is not a list of batches"),
        ("", "is not a list of batches"),
        ("1;2", "is not a list of batches"),
        ("1_0", "is not a list of batches"),
        ("\N{ARABIC-INDIC DIGIT THREE}", "is not a list of batches"),
        ("1234567890", "has a number that is too large: batches go up to 999,999,999"),
        ("1..1000000000", "has a number that is too large: batches go up to 999,999,999"),
    ],
)
def test_a_list_that_does_not_go_on_says_why(text: str, says: str) -> None:
    with pytest.raises(UsageError) as e:
        parse_batches(text)
    assert says in str(e.value) and repr(text) in str(e.value)


def test_a_dimension_has_a_name_and_sizes() -> None:
    assert parse_dim("a=b=128,512") == ("a=b", (128, 512))
    for text in ("=4", "seq", "seq=", "seq=x"):
        with pytest.raises(UsageError):
            parse_dim(text)
