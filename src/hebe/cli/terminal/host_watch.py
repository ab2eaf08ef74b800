"""What the host of this virtual machine gives to others while something is measured on it: figures are too low then."""

from __future__ import annotations

from hebe.machine.meters.processor import ProcessorMeter, ProcessorMeterError
from hebe.profiling.steady_machine import MOST_DENIED


class HostWatch:
    """Watches from its making on."""

    def __init__(self) -> None:
        try:
            self._meter: ProcessorMeter | None = ProcessorMeter()
        except ProcessorMeterError:  # a load generator runs on other systems as well
            self._meter = None

    def denied_share(self) -> float:
        """Of the cores' time since it was last asked, what the host gave to others; 0 where no one tells."""
        return 0.0 if self._meter is None else self._meter.read().steal


def denied_words(denied_share: float, remedy: str = "measure again") -> str:
    """A warning, empty where the host gave next to nothing of the cores' time to others."""
    if denied_share < MOST_DENIED:
        return ""
    return (
        f"While this was measured, the host of this virtual machine gave {denied_share:.0%} of the cores' time to "
        f"others. It may be too low: {remedy} when the host has less to do."
    )
