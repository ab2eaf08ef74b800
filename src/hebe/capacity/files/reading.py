"""What is wrong with a file itself, and the names of data that came from none."""

from __future__ import annotations

import csv
import json
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from hebe.capacity.errors import PlanFileError
from hebe.workload.text_errors import why_unreadable

FilePath = str | PathLike[str]
"""A file or a directory."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What is wrong with `path` itself, that it is missing or no CSV, TOML, JSON or text, becomes a `PlanFileError`."""
    reason: object
    try:
        yield
    except PlanFileError:
        raise
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        raise PlanFileError(f"{path}: {why_unreadable(path, fault)}") from None
    except RecursionError:
        reason = "it is nested too deep"
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as fault:
        reason = fault
    except ValueError:  # of the parsers' own only this: Python refuses to turn thousands of digits into a number
        reason = f"it holds a whole number of more than {sys.get_int_max_str_digits():,} digits"
    else:
        return
    raise PlanFileError(f"{path}: cannot be read: {reason}") from None


def paths_of(given: FilePath | Sequence[FilePath]) -> tuple[Path, ...]:
    """One path or several, as several."""
    return (Path(given),) if isinstance(given, str | PathLike) else tuple(map(Path, given))


def in_memory(parameter: str) -> Path:
    """What stands for a file where data was given in its place, in messages and in requests: `<parameter>`."""
    return Path(f"<{parameter}>")
