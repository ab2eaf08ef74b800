"""Energy of processors and memory as the processors count it themselves: RAPL, through the kernel's powercap files.

Running average power limit: David et al., "RAPL: memory power estimation and capping", ISLPED 2010, which Hercules
measures its servers with (section V). One zone a package, and below it one for the memory behind it where the
processor has that counter. What the zones tell is of the whole machine, whoever uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hebe.machine.kernel_files import why_unreadable

POWERCAP = Path("/sys/class/powercap")
_IF_REFUSED = "may be read by root only: run as root, or let it be read (chmod a+r)"


@dataclass(slots=True)
class _Zone:
    """One counter: the last reading and what it has risen since the first one, microjoules."""

    path: Path
    range_uj: int
    last_uj: int
    total_uj: int = 0

    def advance(self) -> None:
        """Read it again. Raises OSError, ValueError."""
        now_uj = _number(self.path / "energy_uj")
        # It starts again at 0 beyond its range, after some minutes at full power: read more often than that.
        self.total_uj += now_uj - self.last_uj if now_uj >= self.last_uj else now_uj + self.range_uj - self.last_uj
        self.last_uj = now_uj


class RaplCounters:
    """Joules since it was made, of all packages and of their memory. One thread at a time.

    `package_unreadable` and `dram_unreadable` say why there is no figure, empty where there is. A zone that cannot be
    read any more takes its kind with it: the others' sum would not be the machine's.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self.package_unreadable = ""
        self.dram_unreadable = ""
        self._packages: list[_Zone] = []
        self._memory: list[_Zone] = []
        places = sorted(root.glob("intel-rapl:*")) if root.is_dir() else []
        if not places:
            lacks = "has no intel-rapl zone" if root.is_dir() else "does not exist"
            self.package_unreadable = f"{root} {lacks}: virtual machines and other processors seldom have RAPL"
            self.dram_unreadable = self.package_unreadable
            return
        try:
            self._packages = _opened(places, "package-")
        except (OSError, ValueError) as fault:
            self.package_unreadable = why_unreadable(fault, _IF_REFUSED)
        try:
            self._memory = _opened(places, "dram")
        except (OSError, ValueError) as fault:
            self.dram_unreadable = why_unreadable(fault, _IF_REFUSED)
        if not self._packages and not self.package_unreadable:
            self.package_unreadable = f"{root} has no zone of a processor package"
        if not self._memory and not self.dram_unreadable:
            self.dram_unreadable = f"{root} has no zone of memory: this processor does not count it"

    def read(self) -> tuple[float | None, float | None]:
        """Joules of packages and of memory since this object was made; None where they cannot be read."""
        if self._packages:
            self.package_unreadable = _advance(self._packages)
        if self._memory:
            self.dram_unreadable = _advance(self._memory)
        return _joules(self._packages), _joules(self._memory)

    def give_up_packages(self, reason: str) -> None:
        """Count packages as unreadable from now on."""
        self._packages.clear()
        self.package_unreadable = reason


def _opened(places: list[Path], name: str) -> list[_Zone]:
    """The zones whose name begins with `name`. Raises OSError, ValueError if one cannot be read."""
    zones = []
    for place in places:
        if (place / "name").read_text().strip().startswith(name):
            zones.append(_Zone(place, _number(place / "max_energy_range_uj"), _number(place / "energy_uj")))
    return zones


def _advance(zones: list[_Zone]) -> str:
    """Read all zones; if one cannot be, forget all of them and tell why."""
    try:
        for zone in zones:
            zone.advance()
    except (OSError, ValueError) as fault:
        zones.clear()
        return why_unreadable(fault, _IF_REFUSED)
    return ""


def _joules(zones: list[_Zone]) -> float | None:
    return sum(zone.total_uj for zone in zones) / 1e6 if zones else None


def _number(path: Path) -> int:
    text = path.read_text()
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{path} holds {text.strip()[:40]!r} where a number should be") from None
