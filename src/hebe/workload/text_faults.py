"""What is wrong with a file that could not be read as a text."""

from __future__ import annotations

import codecs
import csv
from pathlib import Path

_READ_BYTES = 1 << 20


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
