"""Read TOML files that describe hardware. They may come from anybody, so every key, type and limit is checked."""

import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

MAX_BYTES: Final = 1_000_000
MAX_DOTS: Final = 100  # of a line: tomllib takes the square of a dotted key's parts in steps
MAX_TEXT: Final = 4096  # characters of a text
LEAST_FACTOR: Final = 1e-3  # the smallest factor of a calibration; the largest is its inverse
WIDEST: Final = 4.0  # half-width of a range, as a logarithm: a factor of 55 up and down
MIN_NUMBER: Final = 1e-6  # limits for every figure, in the file's units; wide, and safe to scale to SI units
MAX_NUMBER: Final = 1e12
MOST_DIGITS: Final = 1e15  # of a figure in a message: a larger one is told by its power of ten


class Unusable(Exception):
    """A value that can't be used; the message says what is needed instead."""


def figure(value: float) -> str:
    """A number as messages have it: 1,000,000,000 rather than 1e+09."""
    short = f"{value:g}"
    return f"{value:,.0f}" if "e+" in short and abs(value) <= MOST_DIGITS else short


def missing(path: str = "", what: str = "file") -> str:
    """How messages say that a file, or what it is, is not there; path: "" where they have named it."""
    return f"no such {what}: {path}" if path else f"no such {what}"


def text(value: Any) -> str:
    """One printable line of at most MAX_TEXT characters."""
    # reports print these strings, so control characters, which could steer a terminal, are refused
    if isinstance(value, str) and value.strip() and value.isprintable() and len(value) <= MAX_TEXT:
        return value
    raise Unusable(f"a line of printable text, of at most {MAX_TEXT:,} characters")


def texts(value: Any) -> tuple[str, ...]:
    """Printable lines."""
    if not isinstance(value, list):
        raise Unusable("a list of texts")
    return tuple(text(item) for item in value)


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise Unusable("true or false")
    return value


def number(value: Any) -> float:
    """A positive number within MIN_NUMBER and MAX_NUMBER."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not MIN_NUMBER <= value <= MAX_NUMBER:
        raise Unusable(f"a number from {figure(MIN_NUMBER)} to {figure(MAX_NUMBER)}")
    return float(value)


def factor(value: Any) -> float:
    """A factor from LEAST_FACTOR to its inverse."""
    if not LEAST_FACTOR <= (factor := number(value)) <= 1 / LEAST_FACTOR:
        raise Unusable(f"a factor from {LEAST_FACTOR:g} to {1 / LEAST_FACTOR:g}")
    return factor


def half_width(value: Any) -> float:
    """The half-width of a range, as a natural logarithm: from 0 to WIDEST."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= WIDEST:
        raise Unusable(f"a number from 0 to {WIDEST:g}")
    return float(value)


def count(value: Any) -> int:
    """A positive whole number."""
    if isinstance(value, float):
        raise Unusable("a whole number above 0")
    return int(number(value))


def times(unit: float) -> Callable[[Any], float]:
    """A converter of a positive number: times `unit`, to SI units."""
    return lambda value: number(value) * unit


def nbytes(unit: int) -> Callable[[Any], int]:
    """A converter of a positive number: times `unit` bytes, rounded to whole bytes."""
    return lambda value: max(1, round(number(value) * unit))


def one_of(*choices: str) -> Callable[[Any], str]:
    """A converter that takes only these words."""

    def check(value: Any) -> str:
        if value not in choices:
            raise Unusable(f"one of {', '.join(choices)}")
        return str(value)

    return check


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a file: the field that it fills, and how its value is converted to that field's unit."""

    field: str
    convert: Callable[[Any], Any]
    required: bool = True
    fact: bool = True  # whether it is a figure, which needs a source, rather than a name or a remark


def tables(path: Path) -> dict[str, Any]:
    """What a TOML file holds. Raises Unusable."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device might never end
            raise Unusable("is not a regular file; a TOML file is needed")
        if status.st_size > MAX_BYTES:
            raise Unusable(f"has {status.st_size:,} bytes; the limit is {MAX_BYTES:,}")
        content = path.read_bytes().decode("utf-8-sig")
        for at, line in enumerate(content.split("\n"), 1):
            if (dots := line.count(".")) > MAX_DOTS:
                raise Unusable(f"has {dots:,} dots in line {at}; a line has at most {MAX_DOTS}: use several lines")
        return tomllib.loads(content)
    except FileNotFoundError:
        raise Unusable(f"{missing()}; the path of a TOML file is needed") from None
    except OSError as error:
        raise Unusable(f"cannot be read ({error.strerror}); a readable TOML file is needed") from None
    except UnicodeDecodeError as error:
        raise Unusable(f"is not UTF-8 text (byte {error.start}); TOML is always UTF-8") from None
    except RecursionError:
        raise Unusable("is nested too deeply; tables of plain values are needed") from None
    except ValueError as error:  # bad TOML, a number of thousands of digits, or a NUL in the path
        raise Unusable(f"is not valid TOML: {_cut(str(error), 200)}") from None


def take(keys: Mapping[str, Key], data: Any, where: str, allowed: Iterable[str]) -> dict[str, Any]:
    """The converted values of one table by field, in the order of `keys`.

    where: the table's place for messages, such as " in [memory]"; allowed: all keys that are allowed in it. Raises
    Unusable.
    """
    if not isinstance(data, dict):
        raise Unusable(f"{where.removeprefix(' in ')} needs to be a table")
    for key in data:
        if key not in allowed:
            raise Unusable(f"unknown key {_shown(key)}{where}{nearest(key, allowed)}")
    taken = {}
    for key, at in keys.items():
        if key in data:
            try:
                taken[at.field] = at.convert(data[key])
            except Unusable as needed:
                raise Unusable(f"{key}{where} is {_shown(data[key])}; it needs {needed}") from None
        elif at.required:
            raise Unusable(f"{key}{where} is missing; it is needed")
    return taken


def nearest(name: str, names: Iterable[str]) -> str:
    """The question "did you mean ...?" with the known name that is nearest to an unknown one; "" where none is near."""
    close = get_close_matches(name[:64], list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and not -MAX_NUMBER < value < MAX_NUMBER:
        return "a huge number"  # Python refuses to print integers of thousands of digits
    return _cut(repr(value), 60)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "..."
