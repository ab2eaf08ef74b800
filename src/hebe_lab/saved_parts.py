"""Parts of a long study, kept on disk as each is measured: one that was ended goes on where it was."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from hebe.report.atomic_write import write_whole


class Dataclass(Protocol):
    """What a part is, of fields that are plain data, or such again."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


_Part = TypeVar("_Part", bound=Dataclass)


@dataclass(slots=True)
class KeptParts:
    """The parts of one study in `directory`, a file each; None: nowhere, each run measures all.

    A part counts if it was measured `of` the same: command, commit and machine. `told` is given a sentence for each
    that does. `earlier_s`: how long those took to measure that came from disk.
    """

    directory: Path | None = None
    of: Mapping[str, Any] = field(default_factory=dict)
    told: Callable[[str], object] = lambda _words: None
    earlier_s: float = 0.0

    def part(self, name: str, measure: Callable[[], _Part], read: Callable[[dict[str, Any]], _Part]) -> _Part:
        """Part `name` (of a file name): `read` from the plain data of what was kept, else what `measure` returns, which
        is kept. Raises OSError where it cannot be written, and what `measure` does."""
        if self.directory is None:
            return measure()
        path = self.directory / f"{name}.json"
        if (kept := self._kept(path)) is not None:
            try:
                part = read(kept["part"])
            except (KeyError, TypeError, ValueError, AttributeError):
                self.told(f"{path}: not what it should be; measured anew.")
            else:
                self.earlier_s += kept["seconds"]
                self.told(f"{name} is as measured at {kept['at']}; remove {path} to measure it anew.")
                return part
        began_s = time.perf_counter()
        part = measure()
        content = {
            "of": dict(self.of),
            "at": time.strftime("%Y-%m-%d %H:%M"),
            "seconds": time.perf_counter() - began_s,
            "part": asdict(part),
        }
        write_whole(path, json.dumps(content))
        return part

    def _kept(self, path: Path) -> dict[str, Any] | None:
        """What the file holds, if that is a part of the same."""
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return None
        well_formed = (
            isinstance(content, dict)
            and isinstance(content.get("part"), dict)
            and isinstance(content.get("at"), str)
            and isinstance(content.get("seconds"), float)
        )
        return content if well_formed and content.get("of") == self.of else None

    def remove(self) -> None:
        """The study is at its end: the next run measures all anew."""
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
