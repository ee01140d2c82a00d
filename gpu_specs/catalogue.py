"""Finds a shipped card by any of its names."""

import re
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Final

from gpu_specs.card_file import read
from gpu_specs.device import Device, SpecError, UnknownDevice

_CARDS: Final = Path(__file__).with_name("cards")
#: How names of accelerators of AMD, Intel, Google and AWS begin, without the differences in spelling that do not count.
OTHER_MAKERS: Final = re.compile(
    r"amd|radeon|instinct|rx[5-9]\d|mi\d|intel|gaudi|habana|arc[ab]\d|google|(cloud)?tpu|aws|trainium|trn\d|inferentia|inf\d"
)


@cache
def ids() -> tuple[str, ...]:
    """The ids of all shipped cards, sorted."""
    return tuple(sorted(path.stem for path in _CARDS.glob("*.toml")))


def load(name: str | Path) -> Device:
    """The device of that id, alias or nvidia-smi name, or of that card file.

    A name that ends in .toml or holds a path separator is the path of a card file. Elsewhere case, spaces,
    underscores, dashes and a leading "NVIDIA", "Tesla" or "GeForce" make no difference. Raises UnknownDevice
    for a name that no card answers to, SpecError for a card file that cannot be used.
    """
    return replace(read(Path(name)), file=str(name)) if _is_file(name) else _shipped(resolve(str(name))[0])


def resolve(name: str) -> tuple[str, str | None]:
    """The id that a name stands for and, if other cards could claim the name too, a remark that says so.

    The path of a card file stands for itself. Raises UnknownDevice.
    """
    if _is_file(name):
        return name, None
    key = _key(name)
    stems = _stems()
    if key in stems:  # no card needs to be read for this
        return stems[key], None
    for cards in (_mentioning(key), ids()):  # most names are those of few cards: all are read for one that none has
        exact, short, broken = _names(cards)
        if key in exact:
            return exact[key], None
        if key in short:
            return short[key], f"gpu {name!r} taken as {short[key]}"
    raise UnknownDevice(
        _unknown(name, key, stems | exact | short) + "".join(f"; not known by name: {b}" for b in broken)
    )


def _is_file(name: str | Path) -> bool:
    return isinstance(name, Path) or name.lower().endswith(".toml") or "/" in name or "\\" in name


def _key(name: str) -> str:
    """A name without the differences in spelling that do not count."""
    return re.sub(r"^(nvidia|tesla|geforce)+", "", re.sub(r"[\s_-]+", "", name.casefold()))


@cache
def _stems() -> dict[str, str]:
    """Every id by its key (see `_key`)."""
    return {_key(id): id for id in ids()}


@cache
def _shipped(id: str) -> Device:
    return read(_CARDS / f"{id}.toml")


@cache
def _plain_texts() -> dict[str, str]:
    """What the names in the files of cards are read from, without the differences in spelling that do not count."""
    texts = {id: (_CARDS / f"{id}.toml").read_text(encoding="utf-8", errors="replace") for id in ids()}
    heads = {id: text.partition("\n[")[0] for id, text in texts.items()}  # names come before the first table
    return {id: re.sub(r"[\s_-]+", "", head.casefold()) for id, head in heads.items()}


def _mentioning(key: str) -> tuple[str, ...]:
    """The cards whose file has the key of a name in it; a card that answers to a name is among them."""
    return tuple(id for id, text in _plain_texts().items() if key in text)


@cache
def _names(ids: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str], tuple[str, ...]]:
    """Ids of some cards by the keys of names that only one card has, and by those of short names; and what cards can't
    be used.
    """
    cards, broken = [], []
    for id in ids:
        try:
            cards.append(_shipped(id))
        except SpecError as e:  # one broken file hides no other card
            broken.append(str(e))
    exact = {_key(name): card.id for card in cards for name in (*card.nvml_names, *card.aliases)}
    return exact, {_key(name): card.id for card in cards for name in card.short_names}, tuple(broken)


def _unknown(name: str, key: str, names: dict[str, str]) -> str:
    close = get_close_matches(key[:64], names, n=6, cutoff=0.5)
    nearest = list(dict.fromkeys(names[match] for match in close))[:3]
    shown = name if len(name) <= 64 else name[:64] + "..."
    hint = f"nearest: {', '.join(nearest)}; " if nearest else ""
    if OTHER_MAKERS.match(key):
        hint = "GPUs here are NVIDIA's alone; "
    return f"unknown gpu {shown!r}; {hint}`onnxperf gpus` lists all, and the path of a .toml card file will do"
