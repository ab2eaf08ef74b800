"""The errors of a workload that cannot be drawn as described, and what is wrong with a file of figures: that it is no
text or no CSV, or that a figure's unit is mistaken.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Sequence
from pathlib import Path


class WorkloadError(ValueError):
    """A workload description or trace that makes no sense; the message names the field and what it should be."""


class RecordingError(WorkloadError):
    """A recorded file that a form of a workload names, and that cannot be read."""


_READ_BYTES = 1 << 20
_LEAST_FIGURE, _MOST_FIGURE = 1e-15, 1e15
"""A figure is 0 or lies between them: what does not is a mistaken unit, and no solver reckons with it."""
FIGURE_LIMITS = f"between {_LEAST_FIGURE:g} and {_MOST_FIGURE:g}: check the unit"


def is_figure(number: float) -> bool:
    """Whether a number of at least 0 is 0 or lies in the limits, `FIGURE_LIMITS`, that figures have."""
    return number == 0 or _LEAST_FIGURE <= number <= _MOST_FIGURE


def why_no_commas(names: Sequence[str]) -> str | None:
    """Of a CSV file's header with these `names`: what parts its columns in place of commas; None if nothing does."""
    for character, called in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and character in names[0]:
            return f"has {called}: must have commas between the columns"
    return None


def why_unreadable(path: str | Path, fault: OSError | UnicodeDecodeError | csv.Error) -> str:
    """What a reader of `path` met, in words; of what is not UTF-8 with its line, if the file can be read again."""
    if isinstance(fault, UnicodeDecodeError):
        line = _line_that_is_not_utf8(Path(path))
        where = "" if line is None else f"line {line}: "
        return f"{where}byte 0x{fault.object[fault.start]:02x} is not UTF-8: save the file as UTF-8"
    return f"cannot be read: {(fault.strerror if isinstance(fault, OSError) else None) or fault}"


def _line_that_is_not_utf8(path: Path) -> int | None:
    """The first; None if there is none any more, or it cannot be told. A reader that decodes a file in pieces knows of
    the last one alone.
    """
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    if not path.is_file():  # a pipe gives nothing twice
        return None
    try:
        with open(path, "rb") as file:
            while piece := file.read(_READ_BYTES):
                decoder.decode(piece)
                line += piece.count(b"\n")
            decoder.decode(b"", final=True)
    except OSError:
        return None
    except UnicodeDecodeError as fault:
        return line + fault.object.count(b"\n", 0, fault.start)
    return None
