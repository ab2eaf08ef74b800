"""Which line of the user's code a traceback leads to, one that Python made or one that torch.export wrote down."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hebe import _version

_FRAME_PATTERN = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in \S+\n\s*(?P<code>.*)')
_NOT_THE_USERS = (str(Path(torch.__file__).parent), "torch/", str(Path(_version.__file__).parent), "<")
_INSTALLED = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))
_LONGEST_CODE = 80


@dataclass(frozen=True)
class CodeLine:
    """A line of a Python file; ``net.py, line 31: `mask = seq != 0` `` as text."""

    file: str
    line: int
    code: str

    def __str__(self) -> str:
        code = self.code if len(self.code) <= _LONGEST_CODE else self.code[: _LONGEST_CODE - 3] + "..."
        return f"{Path(self.file).name}, line {self.line}" + (f": `{code}`" if code else "")


def user_line(written: str) -> CodeLine | None:
    """The user's innermost line in a traceback that was written down; None if all lines are torch's or Hebe's."""
    frames = _FRAME_PATTERN.finditer(written)
    return _innermost([CodeLine(frame["file"], int(frame["line"]), frame["code"].strip()) for frame in frames])


def user_line_of(fault: BaseException) -> CodeLine | None:
    """The user's innermost line that `fault` came through, else the one that its text or its cause tells."""
    for each in _with_causes(fault):
        frames = traceback.extract_tb(each.__traceback__)
        lines = [CodeLine(frame.filename, frame.lineno or 0, frame.line or "") for frame in frames]
        if line := _innermost(lines) or user_line(str(each)):
            return line
    return None


def _with_causes(fault: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while fault is not None and id(fault) not in seen:
        yield fault
        seen.add(id(fault))
        fault = fault.__cause__ or fault.__context__


def _innermost(lines: Sequence[CodeLine]) -> CodeLine | None:
    """Rather one that was not installed: a library that the module calls says less than the call does."""
    own = [line for line in lines if not line.file.startswith(_NOT_THE_USERS)]
    own = [line for line in own if not line.file.startswith(_INSTALLED)] or own
    return own[-1] if own else None
