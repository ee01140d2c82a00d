"""Which onnxperf this is: two of one edition predict the same."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import gpu_specs
import op_models
from onnxperf.ground.version import VERSION

SUFFIXES = (".py", ".toml", ".json")  # of code, constants and tables
APART = ("cards/", "lab/")  # a card is asked for by its contents; no answer reads anything of the laboratory


@cache
def edition() -> str:
    """The version, and a hash of all code and constants: a rule or a constant of your own makes another edition."""
    digest = hashlib.blake2b(digest_size=8)
    ours = Path(__file__).parents[1]
    for root in (*(Path(package.__file__ or "").parent for package in (gpu_specs, op_models)), ours):
        files = ((p.relative_to(root).as_posix(), p) for p in root.rglob("*") if p.suffix in SUFFIXES)
        for name, path in sorted(files):
            if not name.startswith(APART):
                content = path.read_bytes()
                digest.update(f"{root.name}/{name} {len(content)}\n".encode() + content)
    return f"{VERSION}-{digest.hexdigest()}"
