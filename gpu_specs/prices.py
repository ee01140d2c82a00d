"""What cards cost to rent: a dated table, with the source of each price."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from gpu_specs import toml_file as toml
from gpu_specs.device import SpecError

_FILE: Final = Path(__file__).with_name("prices.toml")


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour of one card costs, in US dollars, with the part of its machine that is rented with it.

    source: whose price it is, and of what; date: its year and month, "" for a price that the user gave; status:
    `unverified` where nobody compared it with that source.
    """

    usd_per_hour: float
    source: str
    date: str = ""
    status: str = ""


def _month(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"20[0-9]{2}-(0[1-9]|1[0-2])", value):
        raise toml.Unusable('a year and month such as "2025-06"')
    return value


_KEYS: Final = {
    "card": toml.Key("card", toml.text),
    "usd_per_hour": toml.Key("usd_per_hour", toml.number),
    "source": toml.Key("source", toml.text),
    "date": toml.Key("date", _month),
}


@cache
def prices() -> dict[str, Price]:
    """The shipped prices by the card's id. Raises SpecError where the table can't be used."""
    try:
        data = toml.tables(_FILE)
        status = toml.text(data["status"])
        entries = [toml.take(_KEYS, entry, " in [[price]]", _KEYS) for entry in data["price"]]
    except (toml.Unusable, KeyError) as error:
        raise SpecError(f"{_FILE}: {error}") from None
    return {entry.pop("card"): Price(**entry, status=status) for entry in entries}
