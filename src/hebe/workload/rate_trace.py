"""A recorded load: the arrival rate over time, read from CSV.

Two columns with a header. The first is the time at which an interval starts: seconds, or a date and time in ISO 8601
(see `moment_of`); strictly increasing. The second is either the interval's rate (header `rate_qps` or `rate`) or the
number of queries in it (any other header, such as `value` or `count`). The last interval is as long as the one before.

A rate holds until the next line, however late that is. A count is of one step: where the next line comes later than
one step, others are missing. Recorders of counts leave out steps in which nothing came (the least count that the logs
of the World Cup and of Amazon's load balancers hold is 1), so these have a rate of 0; but as lines may have been lost,
too, they are told as gaps.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hebe.workload.text_errors import WorkloadError, why_unreadable

Floats = npt.NDArray[np.float64]

_RATES = ("rate", "rate_qps")
_DIGITS_OF_A_DATE = re.compile("(19[7-9]|20[0-9])[0-9]{5}")
_GAP = 1.5
"""Of the usual step, beyond which lines are missing: those of months differ by a tenth, those of clocks by less."""


@dataclass(frozen=True, slots=True, eq=False)
class RateTrace:
    """The rate is `rates_qps[i]` from `edges_s[i]` to `edges_s[i + 1]`.

    `edges_s` float64 `[n + 1]`, strictly increasing from 0; `rates_qps` float64 `[n]`, at least 0, not all 0. `gaps`
    tells where a file of counts lacks lines, by file, line and field; the rate is 0 there.
    """

    edges_s: Floats
    rates_qps: Floats
    gaps: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.rates_qps) < 1 or len(self.edges_s) != len(self.rates_qps) + 1:
            raise WorkloadError("rate trace: needs at least one interval, and one edge more than rates")
        if self.edges_s[0] != 0 or not np.all(np.diff(self.edges_s) > 0):
            raise WorkloadError("rate trace: edges_s must start at 0 and increase")
        if not np.all(np.isfinite(self.rates_qps)) or self.rates_qps.min() < 0 or self.rates_qps.max() == 0:
            raise WorkloadError("rate trace: rates_qps must be finite, at least 0, and not all 0")

    @property
    def duration_s(self) -> float:
        """How long the recording is."""
        return float(self.edges_s[-1])

    @property
    def remarks(self) -> tuple[str, ...]:
        """What must be said of the gaps, if there are any."""
        if not self.gaps:
            return ()
        more = f" (and {len(self.gaps) - 1} more like it)" if len(self.gaps) > 1 else ""
        return (f"{self.gaps[0]}{more}: no query is sent in steps that have no line, as if none had been counted.",)


def read_rate_trace(path: str | Path) -> RateTrace:
    """The trace in a CSV file as the module's docstring describes. Raises `WorkloadError` naming file, line, field."""
    times: list[float] = []
    values: list[float] = []
    places: list[str] = []
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            if len(header) != 2 or _is_number(header[1]):
                raise WorkloadError(
                    f"{path}: line 1: must be a header of two columns, such as time_s,rate_qps; is {','.join(header)!r}"
                )
            time_name, value_name = (name.strip() for name in header)
            for row in reader:
                if not row:
                    continue
                where = f"{path}: line {reader.line_num}"
                if len(row) != 2:
                    raise WorkloadError(f"{where}: has {len(row)} fields: must have {time_name} and {value_name}")
                times.append(parse_time_s(row[0], f"{where}: {time_name}"))
                values.append(_value(row[1], f"{where}: {value_name}"))
                if len(times) > 1 and times[-1] <= times[-2]:
                    raise WorkloadError(f"{where}: {time_name} is {row[0]}: must be later than the line before")
                places.append(f"{where}: {time_name} {row[0].strip()}")
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        raise WorkloadError(f"{path}: {why_unreadable(path, fault)}") from None
    if len(times) < 2:
        raise WorkloadError(f"{path}: has {len(times)} data lines: a trace needs at least 2")
    if max(values) <= 0:
        raise WorkloadError(f"{path}: {value_name} is 0 on every line: there is no load to play")
    starts, numbers = np.array(times) - times[0], np.array(values)
    if value_name.lower() not in _RATES:
        return _of_counts(starts, numbers, places)
    return RateTrace(np.append(starts, 2 * starts[-1] - starts[-2]), numbers)


def _of_counts(starts: Floats, counts: Floats, places: list[str]) -> RateTrace:
    """The trace of `counts` in steps that begin at `starts`, of lines that are at `places`."""
    steps = np.diff(starts)
    usual = float(np.sort(steps)[(len(steps) - 1) // 2])  # the lower median: a step that there is
    is_gap = steps > _GAP * usual
    lasting = np.where(is_gap, usual, steps)
    lasting = np.append(lasting, lasting[-1])
    before = np.flatnonzero(is_gap)
    edges = np.append(np.insert(starts, before + 1, starts[before] + usual), starts[-1] + lasting[-1])
    gaps = tuple(
        f"{places[at + 1]} is {steps[at]:g} s after the line before, others {usual:g} s: a gap"
        for at in before.tolist()
    )
    return RateTrace(edges, np.insert(counts / lasting, before + 1, 0.0), gaps)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def moment_of(text: str) -> datetime | None:
    """The date and time in ISO 8601 that `text` is; None if it is seconds, or neither.

    Eight digits are a date where there is such a one in the years 1970 to 2099. Seconds of that size, which only a
    recording of over seven months has, are told from it by a point.
    """
    text = text.strip()
    if _is_number(text) and not _DIGITS_OF_A_DATE.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def parse_time_s(text: str, where: str) -> float:
    """Seconds, or a date and time in ISO 8601 as seconds since 1970: in UTC where it has an offset, else as if all days
    had 24 hours. A `WorkloadError` begins with `where`."""
    moment = moment_of(text)
    if moment is not None:
        # Without an offset, wall-clock arithmetic: local daylight saving must not bend the trace.
        start = datetime(1970, 1, 1, tzinfo=None if moment.tzinfo is None else UTC)
        return (moment - start).total_seconds()
    if not _is_number(text):
        raise WorkloadError(f"{where} is {text!r}: must be seconds or an ISO 8601 date and time")
    seconds = float(text)
    if not math.isfinite(seconds):
        raise WorkloadError(f"{where} is {text!r}: must be finite")
    return seconds


def _value(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise WorkloadError(f"{where} is {text!r}: must be a number") from None
    if not (math.isfinite(value) and value >= 0):
        raise WorkloadError(f"{where} is {text!r}: must be finite and at least 0")
    return value
