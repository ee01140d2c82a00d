"""A test that goes through many values fails with each that fails, by its name."""

from __future__ import annotations

import pytest

from tests.each import each


def test_all_that_fail_are_told_by_name() -> None:
    tried = []

    @each([1, 2, 3, 4], name=lambda n: f"number {n}")
    def test_odd(n: int) -> None:
        """Odd numbers only."""
        tried.append(n)
        assert n % 2

    assert (test_odd.__name__, test_odd.__doc__) == ("test_odd", "Odd numbers only.")
    with pytest.raises(ExceptionGroup, match="2 of 4 fail") as failed:
        test_odd()
    assert tried == [1, 2, 3, 4]
    assert [e.__notes__ for e in failed.value.exceptions] == [["This is of number 2."], ["This is of number 4."]]
