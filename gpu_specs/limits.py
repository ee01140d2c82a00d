"""A card with settings of its owner: another power limit, a locked clock."""

from dataclasses import replace

from gpu_specs.device import Device, Rates
from gpu_specs.errors import SpecError

LEAST, MOST = 0.1, 1.5  # shares of the board's power limit; assumed: no tool sets more or less on any card
SLOWEST_HZ = 100e6  # assumed


def limited(device: Device, *, power_W: float | None = None, clock_hz: float | None = None) -> Device:
    """The card under another power limit (W) and at most this SM clock (Hz); None leaves it as it is.

    Rates of arithmetic follow the clock; memory has a clock of its own. Raises SpecError for what the card can't do.
    """
    if device.kind == "cpu" and (power_W is not None or clock_hz is not None):
        raise SpecError(f"{device.id} is a processor: its power and clock are what calibration found")
    if power_W is not None:
        least, most = LEAST * device.tdp_W, MOST * device.tdp_W
        if not least <= power_W <= most:
            raise SpecError(f"{device.id} takes a power limit from {least:.0f} to {most:.0f} W, not {power_W:g} W")
        device = replace(device, tdp_W=power_W)
    if clock_hz is not None:
        if not SLOWEST_HZ <= clock_hz <= device.boost_hz:
            slowest, fastest = SLOWEST_HZ / 1e6, device.boost_hz / 1e6
            asked = clock_hz / 1e6
            raise SpecError(f"{device.id} clocks from {slowest:.0f} to {fastest:.0f} MHz, not at {asked:g} MHz")
        vector, tensor = min(1.0, clock_hz / device.boost_hz), min(1.0, clock_hz / device.tensor_hz)
        rates = [(p, rate * (tensor if p.startswith("tensor_") else vector)) for p, rate in device.dense_flops.pairs]
        tensor_hz = min(clock_hz, device.tensor_hz)
        device = replace(device, boost_hz=clock_hz, tensor_hz=tensor_hz, dense_flops=Rates(tuple(rates)))
    return device
