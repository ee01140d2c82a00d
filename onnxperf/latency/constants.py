"""Constants that latency models read, and the sets of them that are derived from measured kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_specs import Device
from onnxperf.ground.fitting import Prior
from onnxperf.latency.terms import Array
from op_models import Work


@dataclass(frozen=True, slots=True, eq=False)
class Constants:
    """Tables of constants, each an attribute of its name: `constants.launch["kernel_s"]`.

    source: what they were derived from. launch, dram, l2, power: of any kernel; host: by runtime, where runs were
    measured; interval: half-widths of ranges; rig: what the clocks of published benchmarks include beside the kernels,
    which no prediction reads. All other tables are those of kernel families and their models.
    """

    source: str
    tables: Mapping[str, Any]

    def __getattr__(self, table: str) -> Mapping[str, Any]:
        try:
            numbers: Mapping[str, Any] = self.tables[table]
        except KeyError:
            raise AttributeError(f"no file of constants has a table {table!r}") from None
        return numbers

    def having(self, values: Mapping[str, Any]) -> Constants:
        """The constants with other values at dotted paths, such as {"launch.kernel_s": 2e-6}."""
        tables = dict(self.tables)
        for path, value in values.items():
            *keys, last = path.split(".")
            level = tables
            for key in keys:  # what is not on the path is shared
                level[key] = level = dict(level.get(key, {}))
            level[last] = value
        return Constants(self.source, tables)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One constant that is fitted: its dotted path, what it is, and its prior: the median, the standard deviation of
    its logarithm, and a bound from above, for shares of something.
    """

    path: str
    meaning: str
    start: float
    spread: float = 0.3
    most: float = 1e30

    @property
    def prior(self) -> Prior:
        """What is known of it before a fit."""
        return Prior(self.start, self.spread, most=self.most)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles that a library has, by compute capability ("cc75"), as the names of the kernels that it ran tell them.

    path: where they stand among the constants. told_by: the kernels whose names are read, as datasets call them
    (`datasets.Kernels.tiles`). pattern: finds the numbers of a tile in a name. share: of the kernels with a tile in
    their name, those of a tile that counts. since: the first compute capability to have them. unnamed: what there is
    where no kernel has such a name.
    """

    path: str
    told_by: str
    pattern: str
    share: float
    since: int = 0
    unnamed: Mapping[str, list[list[int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConstantSet:
    """Constants that are derived together, from the same measured kernels; they ship as the file `<name>.toml`.

    Datasets say which kernels are theirs (`datasets.Kernels.constants`). parameters: what is fitted; tiles: what is
    read off kernels' names before the fit. after: the sets whose constants these kernels' times depend on as well; they
    are derived first, and all others stay at what is assumed. weight: how many rows the data count for, so that priors
    bind. sample: works of a table that a fit takes at most; rare: cards that measured less than this share of a table's
    works are drawn from apart, as a common draw would leave them next to none. corrections: standard deviations of the
    logarithms of a card's own corrections on compute, memory and launch; overhead_sd: of what a rig's clock includes on
    a card, beside its usual; usual_overhead: on a card without rows it is the usual, rather than the median of those
    with rows, for rigs whose few machines fall into groups that no column tells apart. model: works, devices and
    constants to seconds [n, g], where that is not how the datasets' rigs run the kernels. residuals: what the model
    misses by the sizes of kernels (`latency.residuals.Residuals`), learned after the constants. measured_as: the
    set whose kernels are measured for it, where none are for it alone; rows: from their tables to those that it is
    fitted to. of_runs: no kernels tell the set, but runs of whole models, whose `datasets.Models.constants` has its
    name.
    """

    name: str
    parameters: tuple[Parameter, ...]
    tiles: tuple[Tiles, ...] = ()
    after: tuple[ConstantSet, ...] = ()
    sample: int = 1000
    rare: float = 0.0
    weight: float = 300.0
    corrections: tuple[float, float, float] = (0.05, 0.05, 0.1)
    overhead_sd: float = 0.5
    usual_overhead: bool = False
    residuals: tuple[Any, ...] = ()
    measured_as: str = ""
    rows: Callable[[Sequence[Any]], list[Any]] | None = None
    model: Callable[[Sequence[Work], Sequence[Device], Constants], Array] | None = None
    of_runs: bool = False
