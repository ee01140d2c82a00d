"""Folders of made-up tables, as users and strangers may bring them."""

import gzip
from pathlib import Path


def written(root: Path, dataset: str, **tables: list[str]) -> Path:
    """A folder of measurements in which a dataset has these gzipped tables, lines by name."""
    place = root / dataset
    place.mkdir(exist_ok=True)
    for name, lines in tables.items():
        (place / f"{name}.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return root
