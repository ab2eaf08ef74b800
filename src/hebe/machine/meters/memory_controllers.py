"""Bytes that the memory controllers move, as they count them themselves: perf_event_open(2) on their own devices.

Every read or write of memory is one CAS command (column address strobe), which moves 64 bytes. Intel's servers name
the events `cas_count_read` and `cas_count_write` (some once for each half of a channel), its other processors
`data_read` and `data_write`; AMD's, from Zen 4 on, name none and count commands as event 0x0a.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import struct
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hebe.machine.kernel_files import listed_ranges, why_unreadable

EVENT_SOURCE = Path("/sys/bus/event_source/devices")

_CAS_BYTES = 64.0
_UNIT_BYTES = {"MiB": float(1 << 20), "GiB": float(1 << 30), "KiB": 1024.0, "Bytes": 1.0}
_NAMED = (re.compile(r"cas_count_(read|write)(_\w+)?"), re.compile(r"data_(read|write)s?"))
"""Events of Intel's controllers. Where the first kind is there the second counts the same once more."""
_AMD_CAS = "event=0x0a"

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_COUNT_AND_TIMES = 1 | 2
"""PERF_FORMAT_TOTAL_TIME_ENABLED and _RUNNING: a controller has few counters, which events may have to take in turn."""
_TOLD = struct.Struct("QQQ")
_CLOSE_ON_EXEC = 8
_IF_REFUSED = (
    "may not be counted by this user: sysctl kernel.perf_event_paranoid=0, or run as root (in a container: with "
    "CAP_PERFMON)"
)
_OF_ALL_PROCESSES = -1


@dataclass(frozen=True, slots=True)
class ControllerEvent:
    """What one controller counts: its device and the event there, one counter for each of `cores` (one a socket), and
    the bytes that a count stands for.
    """

    name: str
    device_type: int
    config: int
    cores: tuple[int, ...]
    bytes_each: float


OpenCounter = Callable[[ControllerEvent, int], int]
"""Begins to count an event on a core; returns a file descriptor. Raises OSError."""


class MemoryControllers:
    """Bytes that all controllers of the machine have moved. One thread at a time.

    `unreadable` says why there is no figure, empty where there is one.
    """

    def __init__(self, root: Path = EVENT_SOURCE, open_counter: OpenCounter | None = None) -> None:
        self.unreadable = ""
        self._counters: list[tuple[str, int, float]] = []
        weakref.finalize(self, _close, self._counters)
        count = open_counter or perf_counter
        try:
            events = controller_events(root)
            for event in events:
                for core in event.cores:
                    name = f"{event.name} of core {core}"
                    self._counters.append((name, count(event, core), event.bytes_each))
        except (OSError, ValueError) as fault:
            self._give_up(why_unreadable(fault, _IF_REFUSED))
        if not self._counters and not self.unreadable:
            self.unreadable = f"{root} has no memory controller: virtual machines and many processors show none"

    def counts(self) -> dict[str, float] | None:
        """Bytes by counter since this object was made; None where they cannot be read (any more)."""
        counts = {}
        try:
            for name, descriptor, bytes_each in self._counters:
                count, enabled_ns, running_ns = _read(descriptor, name)
                if not running_ns and enabled_ns:
                    raise ValueError(f"{name} is not counted: other programs have taken the counters")
                counts[name] = bytes_each * count * (enabled_ns / running_ns if running_ns else 1.0)
        except (OSError, ValueError) as fault:
            self._give_up(why_unreadable(fault, _IF_REFUSED))
        return counts if self._counters else None

    def _give_up(self, reason: str) -> None:
        _close(self._counters)
        self.unreadable = reason


def controller_events(root: Path = EVENT_SOURCE) -> list[ControllerEvent]:
    """What to count for all that the controllers move, none where the kernel shows no controller.

    Raises OSError, ValueError on files that cannot be read or understood.
    """
    for named in _NAMED:
        found = [
            _named_event(device, path.name)
            for device in sorted(root.glob("uncore_imc*"))
            for path in sorted((device / "events").glob("*"))
            if named.fullmatch(path.name)
        ]
        if found:
            return found
    return [_event(device, "CAS commands", _AMD_CAS, _CAS_BYTES) for device in sorted(root.glob("amd_umc*"))]


def _named_event(device: Path, name: str) -> ControllerEvent:
    place = device / "events"
    bytes_each = _CAS_BYTES
    if (place / f"{name}.scale").exists():
        scale, unit = (_text(place / f"{name}.{what}") for what in ("scale", "unit"))
        if unit not in _UNIT_BYTES:
            raise ValueError(f"{place / name}.unit is {unit[:20]!r}: not a unit that is known here")
        bytes_each = float(scale) * _UNIT_BYTES[unit]
    return _event(device, name, _text(place / name), bytes_each)


def _event(device: Path, name: str, terms: str, bytes_each: float) -> ControllerEvent:
    config = 0
    for term in terms.split(","):
        field, _, value = term.partition("=")
        for bits, place in _fields(device / "format" / field, int(value or "1", 0)):
            config |= bits << place
    listed = listed_ranges(_text(device / "cpumask")) if (device / "cpumask").exists() else [(0, 0)]
    cores = tuple(core for first, last in listed for core in range(first, last + 1))
    return ControllerEvent(f"{device.name}/{name}", int(_text(device / "type")), config, cores, bytes_each)


def _fields(path: Path, value: int) -> Iterator[tuple[int, int]]:
    """Where the bits of a field go: `config:0-7,32-35` takes the low eight to 0 and the next four to 32."""
    register, _, ranges = _text(path).partition(":")
    if register != "config":
        raise ValueError(f"{path} is {register[:20]!r}: only fields of config are set here")
    for low, high in listed_ranges(ranges):
        width = high - low + 1
        yield value & ((1 << width) - 1), low
        value >>= width
    if value:
        raise ValueError(f"{path}: the event's value does not fit into it")


def _text(path: Path) -> str:
    return path.read_text().strip()


class _Attributes(ctypes.Structure):
    """The first version of perf_event_attr, which every kernel takes."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("config", ctypes.c_uint64),
        ("sample_period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64),
        ("read_format", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("wakeup_events", ctypes.c_uint32),
        ("bp_type", ctypes.c_uint32),
        ("config1", ctypes.c_uint64),
    )


def perf_counter(event: ControllerEvent, core: int) -> int:
    """Have the kernel count `event` from now on; returns the file descriptor that tells the count and the times.

    Raises OSError, with EPERM or EACCES where this user may not count what all processes do.
    """
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"perf_event_open is not known on {platform.machine()}")
    attributes = _Attributes(
        type=event.device_type, size=ctypes.sizeof(_Attributes), config=event.config, read_format=_COUNT_AND_TIMES
    )
    library = ctypes.CDLL(None, use_errno=True)
    no_group = -1
    descriptor: int = library.syscall(
        ctypes.c_long(number), ctypes.byref(attributes), ctypes.c_int(_OF_ALL_PROCESSES), ctypes.c_int(core),
        ctypes.c_int(no_group), ctypes.c_ulong(_CLOSE_ON_EXEC),
    )  # fmt: skip
    if descriptor < 0:
        failed = ctypes.get_errno()
        raise OSError(failed, os.strerror(failed), event.name)
    return descriptor


def _read(descriptor: int, name: str) -> tuple[int, int, int]:
    """The count, and for how many nanoseconds it was wanted and was taken. Raises OSError, ValueError."""
    try:
        told = os.read(descriptor, _TOLD.size)
    except OSError as fault:
        raise OSError(fault.errno, fault.strerror, name) from None
    if len(told) < _TOLD.size:
        raise ValueError(f"{name} is counted no more")
    return _TOLD.unpack(told)


def _close(counters: list[tuple[str, int, float]]) -> None:
    while counters:
        os.close(counters.pop()[1])
