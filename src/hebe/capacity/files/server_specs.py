"""Server types to estimate: those built in by name, others from TOML files of `ServerSpec` fields."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.reading import reading
from hebe.planning.colocation.shared_server import MOST_CORES
from hebe.planning.error import Parameter
from hebe.simulation.analytic.server_types import EC2, HERA_SOCKET, HERCULES, IDLE_SHARE
from hebe.spec import AcceleratorSpec, ServerSpec, SpecError

BUILT_IN: Mapping[str, ServerSpec] = {**HERCULES, HERA_SOCKET.name: HERA_SOCKET, **EC2}
"""By name: Hercules' ten, Hera's socket, Kairos' four on EC2."""

TEMPLATE = f"""\
# Figures are those of data sheets, of one whole server.
name = "my-server"
cores = 20                              # physical ones: two hyper-threads are one core
memory_bytes = 128e9
memory_bandwidth_bytes_per_s = 85.3e9   # peak: channels x transfers/s x 8, such as 4 x 2666e6 x 8
clock_hz = 2.0e9                        # base clock
flops_per_cycle_per_core = 64           # fp32: 16 x fused multiply-add units of AVX2, 32 x those of AVX-512
peak_power_watts = 175.0                # processors and memory at full load
llc_bytes = 27.5e6                      # last-level cache

# These may be left out:
idle_power_watts = 40.0                 # default: {IDLE_SHARE:g} of the peak
memory_idle_power_watts = 12.0          # of the above, memory's part: it rises with memory traffic
memory_peak_power_watts = 50.0
price_per_hour = 1.2                    # for your own reference
near_memory_ranks = 0                   # ranks of a channel that sum rows within the memory (Hercules' NMP)

# [accelerator]                         # all but the last two are needed
# name = "V100"
# peak_flops_per_s = 15.7e12            # fp32
# memory_bytes = 16e9
# memory_bandwidth_bytes_per_s = 900e9
# pcie_bandwidth_bytes_per_s = 11.7e9   # what copies from the host reach, not the link's peak
# compute_units = 80                    # a GPU's SMs
# launch_overhead_s = 5e-6              # one kernel, however small
# peak_power_watts = 300.0
# idle_power_watts = 45.0               # default: 0
"""

_NEEDED = (
    "name", "cores", "memory_bytes", "memory_bandwidth_bytes_per_s", "clock_hz", "flops_per_cycle_per_core",
    "peak_power_watts", "llc_bytes",
)  # fmt: skip
_MAY = (
    "idle_power_watts", "memory_idle_power_watts", "memory_peak_power_watts", "price_per_hour", "near_memory_ranks",
    "accelerator",
)  # fmt: skip
_ACCELERATOR_NEEDED = (
    "name", "peak_flops_per_s", "memory_bytes", "memory_bandwidth_bytes_per_s", "pcie_bandwidth_bytes_per_s",
    "compute_units", "launch_overhead_s", "peak_power_watts",
)  # fmt: skip
_ACCELERATOR_MAY = ("idle_power_watts",)
_POSITIVE = (
    "cores", "memory_bytes", "memory_bandwidth_bytes_per_s", "clock_hz", "flops_per_cycle_per_core",
    "peak_power_watts", "compute_units",
)  # fmt: skip
_MOST = {"cores": MOST_CORES, "near_memory_ranks": 1024, "compute_units": 100_000}
_COUNTS = ("cores", "memory_bytes", "llc_bytes", "near_memory_ranks", "compute_units")
"""Whole numbers; TOML may write them as 128e9."""


def server_named(text: str) -> ServerSpec:
    """The built-in type `text`, or the one that the TOML file `text` describes; raises `PlanFileError`."""
    if text in BUILT_IN:
        return BUILT_IN[text]
    path = Path(text)
    if path.suffix.lower() == ".toml":
        return read_server_spec(path)
    close = difflib.get_close_matches(text.lower(), [name.lower() for name in BUILT_IN], n=3, cutoff=0.5)
    near = [name for name in BUILT_IN if name.lower() in close or name.lower().startswith(text.lower())]
    hint = f"near are {', '.join(near)}" if near else f"there are {', '.join(BUILT_IN)}"
    raise PlanFileError(f"server type {text!r} is not built in; {hint}. A server of your own is a TOML file: FILE.toml")


def read_server_spec(path: Path) -> ServerSpec:
    """The server type of a file like `TEMPLATE`; raises `PlanFileError` naming file and field."""
    with reading(path):
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    fields = _checked(str(path), content, _NEEDED, _MAY)
    fields.setdefault("idle_power_watts", IDLE_SHARE * fields["peak_power_watts"])
    try:
        if "accelerator" in fields:
            held = fields["accelerator"]
            if not isinstance(held, dict):
                raise PlanFileError(f"{path}: accelerator is {held!r}: must be a table: [accelerator]")
            where = f"{path}: accelerator"
            fields["accelerator"] = AcceleratorSpec(**_checked(where, held, _ACCELERATOR_NEEDED, _ACCELERATOR_MAY))
        return ServerSpec(**fields)
    except SpecError as fault:
        raise PlanFileError(f"{path}: {fault}") from None


def _checked(where: str, fields: Mapping[str, Any], needed: tuple[str, ...], may: tuple[str, ...]) -> dict[str, Any]:
    """`fields` with numbers as the specs want them."""
    known = (*needed, *may)
    for name in fields:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise PlanFileError(f"{where}: unknown field {name!r}: {hint}")
    for name in needed:
        if name not in fields:
            raise PlanFileError(f"{where}: {name} is missing: ", Parameter("TEMPLATE"), " shows all fields and units")
    return {name: _value(f"{where}: {name}", name, value) for name, value in fields.items()}


def _value(where: str, name: str, value: Any) -> Any:
    if name in ("name", "accelerator"):
        return value
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise PlanFileError(f"{where} is {value!r}: must be a number")
    if not 0 <= value < float("inf"):
        raise PlanFileError(f"{where} is {value!r}: must be a finite number of at least 0")
    if name in _POSITIVE and value == 0:
        raise PlanFileError(f"{where} is 0: must be more")
    if name not in _COUNTS:
        return float(value)
    if value != int(value):
        raise PlanFileError(f"{where} is {value!r}: must be a whole number")
    if value > (most := _MOST.get(name, float("inf"))):
        raise PlanFileError(f"{where} is {value!r}: must be at most {most:,}")
    return int(value)
