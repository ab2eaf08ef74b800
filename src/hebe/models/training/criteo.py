"""Streaming reader of Criteo-format click logs: label, 13 integers (I1..I13), 26 categorical values (C1..C26).

Two forms are read, gzipped or not, and told apart by their first line:

- without header: exactly 40 fields, label first (the Criteo Kaggle and Terabyte files);
- with header: columns found by name in any case and order, others (`Id`, a URL of any length) passed over.

The delimiter is a tab if the first line holds one, else a comma. Empty fields are missing values. Fields between
quotes are unquoted where commas are the delimiter or the first line has quotes. Memory stays at one batch, whatever the
file's size. `hebe.models.training.criteo_features` turns the rows into a model's inputs.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from hebe.models.repository.stored_file import why_no_file

INTEGER_COLUMNS = tuple(f"I{number}" for number in range(1, 14))
CATEGORICAL_COLUMNS = tuple(f"C{number}" for number in range(1, 27))
_COLUMNS = ("label", *INTEGER_COLUMNS, *CATEGORICAL_COLUMNS)

_QUOTED_FIELD = {
    delimiter: re.compile(rb'(?:"([^"]*(?:""[^"]*)*)"|([^"%b]*))(%b|\Z)' % (delimiter, delimiter))
    for delimiter in (b",", b"\t")
}
"""A field and what ends it: (between quotes, or without, the delimiter or nothing)."""

MAX_LINE_BYTES = 65_536
MAX_FIELD_BYTES = 64

_MALFORMED = b"?"
"""Stands for a line that is too long to be kept."""


class CriteoFormatError(ValueError):
    """A file that is not in Criteo format; the message names file, line and field, and what was expected."""


@dataclass(frozen=True, slots=True)
class CriteoRows:
    """A batch of rows as they stand in the file.

    `labels` float32 `[n]`, 0 or 1. `integers` float64 `[n, 13]`, NaN where missing. `categories` bytes (`S`)
    `[n, 26]`, empty where missing. `bad_lines` counts the malformed lines passed over to collect these rows.
    """

    labels: npt.NDArray[np.float32]
    integers: npt.NDArray[np.float64]
    categories: npt.NDArray[np.bytes_]
    bad_lines: int = 0

    def __len__(self) -> int:
        return len(self.labels)


class CriteoFile:
    """One Criteo-format file, opened anew by each pass over it.

    Raises `CriteoFormatError` if the first line is neither a header with the 40 columns nor a row of 40 fields,
    and OSError if the file cannot be read. With `skip_bad_lines`, malformed lines are passed over and counted.
    """

    def __init__(self, path: str | Path, *, skip_bad_lines: bool = False) -> None:
        self.path = Path(path)
        self.skip_bad_lines = skip_bad_lines
        if other := why_no_file(self.path):
            raise CriteoFormatError(f"{self.path}: {other}; give one file")
        with self._open() as file:
            first = self._read_line(file, 1)
        if not first.strip():
            raise CriteoFormatError(f"{self.path}: line 1 is empty; give a file with at least one row")
        self._delimiter = b"\t" if b"\t" in first else b","
        self._field = _QUOTED_FIELD[self._delimiter] if b'"' in first or self._delimiter == b"," else None
        fields = self._unquoted(_strip(first)) or _strip(first).split(self._delimiter)
        names = [_text(field).strip('" ').lower() for field in fields]
        self.has_header = "label" in names
        self._width = len(names)
        self._columns = self._find_columns(names) if self.has_header else self._count_columns(first)

    def count_rows(self, most: int | None = None) -> int:
        """Lines that are neither header nor blank, counted up to `most`.

        Malformed ones count, so that splits by row stay put.
        """
        return sum(1 for _ in islice(self._lines(), most))

    def batches(self, batch_rows: int, start: int = 0, stop: int | None = None) -> Iterator[CriteoRows]:
        """Rows `[start, stop)` of the file (as `count_rows` counts them), in order, `batch_rows` at a time.

        A batch is smaller at the end, and where malformed lines were passed over. Raises `CriteoFormatError` on
        a malformed line unless `skip_bad_lines`.
        """
        if batch_rows < 1:
            raise ValueError(f"batch_rows is {batch_rows}: must be at least 1")
        lines: list[bytes] = []
        numbers: list[int] = []
        for row, (number, line) in enumerate(self._lines()):
            if row < start:
                continue
            if stop is not None and row >= stop:
                break
            lines.append(line)
            numbers.append(number)
            if len(lines) == batch_rows:
                yield self._parse(lines, numbers)
                lines, numbers = [], []
        if lines:
            yield self._parse(lines, numbers)

    def _open(self) -> BinaryIO:
        """The decompressed bytes."""
        file = self.path.open("rb")
        if file.peek(2)[:2] == b"\x1f\x8b":
            return cast(BinaryIO, io.BufferedReader(_OwningGzip(file), buffer_size=1 << 18))
        return file

    def _read_line(self, file: BinaryIO, number: int) -> bytes:
        try:
            line = piece = file.readline(MAX_LINE_BYTES + 1)
            if len(line) > MAX_LINE_BYTES:
                if number == 1 or not self.skip_bad_lines:
                    raise CriteoFormatError(
                        f"{self.path}, line {number}: longer than {MAX_LINE_BYTES} bytes; not a Criteo-format text file"
                    )
                while piece and not piece.endswith(b"\n"):
                    piece = file.readline(MAX_LINE_BYTES)
                return _MALFORMED
        except (EOFError, gzip.BadGzipFile, zlib.error) as fault:
            raise CriteoFormatError(f"{self.path}, at line {number} or after it: broken gzip data: {fault}") from None
        return line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """(line number from 1, line without its end) of every row."""
        with self._open() as file:
            number = 1
            if self.has_header:
                self._read_line(file, number)
                number = 2
            while line := self._read_line(file, number):
                line = _strip(line)
                if line:
                    yield number, line
                number += 1

    def _find_columns(self, names: Sequence[str]) -> list[int]:
        repeated = {name for name in names if names.count(name) > 1}
        for column in _COLUMNS:
            if column.lower() in repeated:
                raise CriteoFormatError(f"{self.path}, line 1: column {column} appears twice in the header")
            if column.lower() not in names:
                raise CriteoFormatError(
                    f"{self.path}, line 1: the header has no column {column}; needed are label, I1..I13, C1..C26"
                )
        return [names.index(column.lower()) for column in _COLUMNS]

    def _count_columns(self, first: bytes) -> list[int]:
        if self._width != len(_COLUMNS):
            raise CriteoFormatError(
                f"{self.path}, line 1: {self._width} field(s): neither a header naming label, I1..I13, C1..C26 "
                f"nor a row of 40 fields (label, 13 integers, 26 categorical values) separated by tabs or commas "
                f"(it begins with {_text(first[:40])!r})"
            )
        return list(range(len(_COLUMNS)))

    def _parse(self, lines: list[bytes], numbers: list[int]) -> CriteoRows:
        bad: dict[int, str] = {}
        unquoted: dict[int, list[bytes]] = {}
        for index, line in enumerate(lines):
            count = line.count(self._delimiter) + 1
            if self._field is not None and b'"' in line:
                found = self._unquoted(line)
                if found is None:
                    bad[index] = "quotes must surround a whole field, and be doubled within it"
                    continue
                unquoted[index], count = found, len(found)
            if count != self._width:
                bad[index] = f"{count} fields, expected {self._width}"
        fields = self._split(lines, unquoted, bad)
        labels = self._numbers(fields[:, :1], bad, ("label",))[:, 0]
        for index in np.flatnonzero((labels != 0) & (labels != 1)).tolist():
            bad.setdefault(index, _wrong_number("label", fields[index, 0], ""))
        integers = self._numbers(fields[:, 1:14], bad, INTEGER_COLUMNS)
        if bad and not self.skip_bad_lines:
            index = min(bad)
            raise CriteoFormatError(
                f"{self.path}, line {numbers[index]}: {bad[index]} (--skip-bad-lines passes over such lines)"
            )
        keep = np.ones(len(lines), dtype=bool)
        keep[list(bad)] = False
        return CriteoRows(labels[keep].astype(np.float32), integers[keep], fields[keep, 14:], len(bad))

    def _unquoted(self, line: bytes) -> list[bytes] | None:
        """The fields of a line, without their quotes; None where the file has none, or these do not match."""
        fields: list[bytes] = []
        position, separator = 0, self._delimiter
        while separator and self._field is not None:
            found = self._field.match(line, position)
            if found is None:
                return None
            quoted, plain, separator = found.groups()
            fields.append(plain if quoted is None else quoted.replace(b'""', b'"'))
            position = found.end()
        return fields or None

    def _split(
        self, lines: list[bytes], unquoted: dict[int, list[bytes]], bad: dict[int, str]
    ) -> npt.NDArray[np.bytes_]:
        """Fields `[n, 40]` in the order of `_COLUMNS`; those of a line in `unquoted` are taken from there, a line in
        `bad` becomes empty fields.
        """
        blank = self._delimiter * (self._width - 1)
        passed_over = bad.keys() | unquoted.keys()
        whole = [blank if index in passed_over else line for index, line in enumerate(lines)] if passed_over else lines
        flat = self._delimiter.join(whole).split(self._delimiter)
        for index in unquoted.keys() - bad.keys():
            flat[index * self._width : (index + 1) * self._width] = unquoted[index]
        if max(map(len, flat)) > MAX_FIELD_BYTES:
            for position, field in enumerate(flat):
                if len(field) > MAX_FIELD_BYTES:
                    flat[position] = b""
                    index, column = divmod(position, self._width)
                    if column in self._columns:  # others, a URL say, may be as long as they like
                        name = _COLUMNS[self._columns.index(column)]
                        bad.setdefault(index, f"field {name} has {len(field)} bytes: at most {MAX_FIELD_BYTES}")
        return np.array(flat).reshape(len(lines), self._width)[:, self._columns]

    @staticmethod
    def _numbers(
        fields: npt.NDArray[np.bytes_], bad: dict[int, str], columns: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        """Fields `[n, columns]` as float64, NaN where empty (or where the row is in `bad`, which may grow)."""
        filled = np.where(fields == b"", np.bytes_(b"nan"), fields)
        try:
            values = filled.astype(np.float64)
        except ValueError:
            values = np.full(filled.shape, np.nan)
            for (row, column), field in np.ndenumerate(filled):
                try:
                    values[row, column] = float(field)
                except ValueError:
                    bad.setdefault(row, _wrong_number(columns[column], field, "a number or empty"))
        for row, column in np.argwhere(np.isinf(values)).tolist():
            bad.setdefault(row, _wrong_number(columns[column], fields[row, column], "a finite number or empty"))
        return values


class _OwningGzip(gzip.GzipFile):
    """A gzip stream that closes the file below it."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._file = file

    def close(self) -> None:
        """Close both."""
        super().close()
        self._file.close()


def _strip(line: bytes) -> bytes:
    """Without the line's end; tabs stay, they separate empty fields."""
    return line.rstrip(b"\r\n")


def _wrong_number(column: str, field: bytes, expected: str) -> str:
    """What is wrong with a field; of a label, which may be nothing else, that it must be 0 or 1."""
    return f"field {column} is {_text(field)!r}: must be {'0 or 1' if column == 'label' else expected}"


def _text(field: bytes) -> str:
    return bytes(field[:80]).decode("utf-8", "replace")
