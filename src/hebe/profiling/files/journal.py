"""What was measured of configurations, kept on disk as it comes: a search that was ended goes on where it was.

A journal is a directory with one file of JSON lines, one for each evaluation. It only grows. Who asks for a
configuration again is answered from it instead of measuring: the first time with the first run that was recorded, the
second time with the second, since a search asks again where two candidates are within its noise. Points of a
scalability profile have lines of their own, and so have times of batches, by which a search may predict. Each line says
what disturbed its measurement, so that who is answered is told of that as well.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hebe.models.repository.stored_file import flush_directory
from hebe.planning.server_split.search import Configuration, Evaluate, Reached
from hebe.profile import LatencyProfile, ProfileError
from hebe.profiling.error import MeasurementError, ProfilingError
from hebe.profiling.files.plain_data import (
    parse_json,
    point_from_dict,
    point_to_dict,
    run_disturbance_from_dict,
    run_from_dict,
    run_to_dict,
    times_from_dict,
    times_to_dict,
)
from hebe.profiling.files.points import MeasurePoint, ScalabilityPoint, TimeBatches
from hebe.profiling.files.profiled_model import ProfileSubject
from hebe.profiling.steady_machine import RunDisturbance
from hebe.scheduling.events import Stage
from hebe.server_configuration import Lane

FILE_NAME = "evaluations.jsonl"
_FORMAT = 1
_BEGINNING = b'{"format": '
"""Of every line."""
_FORGET = {"forget": True}
"""Instead of a run: those before do not count any more."""
_POINT = "point"
"""Instead of a run's fields: those of a point of the scalability profile."""
_TIMES = "times"
"""Instead of a run's fields: those of times of batches."""
_DISTURBANCE = "disturbance"
"""Beside all of these: what disturbed that measurement. Lines of older versions lack it."""
_MAY_BE_UNKNOWN = {"low_qps", "high_qps", "power_source", "bandwidth_bytes_per_s", "cpu_share"}
"""Of what is measured."""

_Run = tuple[Reached, RunDisturbance | None]
"""What was reached, and what disturbed that; None: not known, or of this session."""


class Journal:
    """The runs of one subject that are on disk, and those that are added; made by `open_journal`.

    `recorded` runs were there at the beginning; `answered` counts askings that they answered, `measured` those that
    were measured.
    """

    def __init__(self, path: Path, descriptor: int, subject: ProfileSubject) -> None:
        self.path = path
        self.answered = self.measured = 0
        self._descriptor = descriptor
        self._subject = subject.to_dict()
        self._runs: defaultdict[Configuration, list[_Run]] = defaultdict(list)
        self._asked: defaultdict[Configuration, int] = defaultdict(int)
        self._points: dict[tuple[Configuration, int | None], ScalabilityPoint] = {}
        self._times: dict[tuple[Lane, tuple[int, ...]], dict[Stage, LatencyProfile]] = {}
        self._noted: Callable[[], RunDisturbance | None] = lambda: None
        self._disturbances: dict[object, RunDisturbance] = {}
        self._answered_with: dict[object, RunDisturbance] = {}
        self._size_bytes = 0
        self._forgets = False
        self._read()
        self.recorded = self.kept

    def noting(self, disturbance: Callable[[], RunDisturbance | None]) -> None:
        """From here on note beside what is recorded what `disturbance` says then, None: nothing."""
        self._noted = disturbance

    @property
    def disturbances(self) -> tuple[RunDisturbance, ...]:
        """What disturbed the measurements of sessions before this one that have answered, as far as they say so."""
        return tuple(self._answered_with.values())

    def evaluating(self, evaluate: Evaluate, power_source: str | None = None) -> Evaluate:
        """`evaluate` as a search asks it: answered from the journal where it can be, else measured and recorded.

        Only runs answer whose watts are from `power_source`, None: from wherever. Watts that were read and watts that
        were estimated do not compare. What it returns raises `ProfilingError` for a measurement that is no number and
        where the disk takes no more; all that was recorded before stays.
        """

        def ask(configuration: Configuration) -> Reached:
            runs = self._runs_by(configuration, power_source)
            before = self._asked[configuration]
            if before < len(runs):
                reached, disturbance = runs[before]
                self.answered += 1
                if disturbance is not None:
                    self._answered_with[configuration, f"run {before}"] = disturbance
            else:
                reached = evaluate(configuration)
                self._record(configuration, reached)
                self.measured += 1
            self._asked[configuration] += 1
            return reached

        return ask

    def beside(self, power_source: str | None = None) -> dict[Configuration, list[Reached]]:
        """Of the configurations that have runs which were not asked for, all runs whose watts are from `power_source`,
        None: from wherever."""
        runs = {each: self._runs_by(each, power_source) for each in self._runs}
        return {each: [run for run, _ in own] for each, own in runs.items() if len(own) > self._asked[each]}

    def timing(self, time_batches: TimeBatches) -> TimeBatches:
        """`time_batches` as a prediction asks it: answered from the journal where it can be, else measured and
        recorded. What it returns raises as that of `evaluating`, and what `time_batches` does.
        """

        def ask(lane: Lane, batch_sizes: Sequence[int]) -> dict[Stage, LatencyProfile]:
            asked = lane, tuple(batch_sizes)
            if asked not in self._times:
                times = time_batches(lane, batch_sizes)
                self._append_measured({_TIMES: times_to_dict(lane, batch_sizes, times)})
                self._times[asked] = times
            self._answer_with(asked)
            return self._times[asked]

        return ask

    def scaling(self, measure: MeasurePoint, tried: Mapping[Configuration, Reached] | None = None) -> MeasurePoint:
        """`measure` as a scalability profile asks it: answered by what a search has `tried`, and from the journal,
        where it can be, else measured and recorded. What it returns raises as that of `evaluating`, and what `measure`
        does.
        """
        tried = tried or {}

        def ask(configuration: Configuration, cache_ways: int | None) -> ScalabilityPoint:
            asked = configuration, cache_ways
            run = tried.get(configuration) if cache_ways is None else None
            if run is not None and run.bandwidth_bytes_per_s is not None:
                return ScalabilityPoint(run.qps, run.bandwidth_bytes_per_s, run.bandwidth_estimated, run.power_watts)
            if asked not in self._points:
                point = measure(configuration, cache_ways)
                _check(configuration, asdict(point))
                self._append_measured({_POINT: point_to_dict(configuration, cache_ways, point)})
                self._points[asked] = point
            self._answer_with(asked)
            return self._points[asked]

        return ask

    @property
    def kept(self) -> int:
        """Measurements that count, which the same search finds here when it is asked for again."""
        return sum(map(len, self._runs.values())) + len(self._points) + len(self._times)

    def forget(self) -> None:
        """What was recorded of the subject before does not count any more: in this session from here on, and in others
        once something was measured in its place."""
        self._clear()
        self.recorded = 0
        self._forgets = True

    def _runs_by(self, configuration: Configuration, power_source: str | None) -> list[_Run]:
        recorded = self._runs[configuration]
        return [run for run in recorded if power_source is None or run[0].power_source == power_source]

    def _answer_with(self, asked: object) -> None:
        if asked in self._disturbances:
            self._answered_with[asked] = self._disturbances[asked]

    def _clear(self) -> None:
        self._runs.clear()
        self._points.clear()
        self._times.clear()
        self._disturbances.clear()

    def _record(self, configuration: Configuration, reached: Reached) -> None:
        _check(configuration, asdict(reached))
        if reached.qps > 0 and not reached.power_watts:
            raise MeasurementError(configuration, "its measurement diverged: its power_watts is 0")
        self._append_measured(run_to_dict(configuration, reached))
        self._runs[configuration].append((reached, None))

    def _append_measured(self, content: Mapping[str, Any]) -> None:
        noted = self._noted()
        measured = content if noted is None else {**content, _DISTURBANCE: asdict(noted)}
        self._append([_FORGET, measured] if self._forgets else [measured])
        self._forgets = False

    def _append(self, contents: Sequence[Mapping[str, Any]]) -> None:
        lines = "".join(
            json.dumps({"format": _FORMAT, "subject": self._subject, **content}, allow_nan=False) + "\n"
            for content in contents
        ).encode()
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as fault:
            with suppress(OSError):  # a part of a line must not stand before the next one
                os.ftruncate(self._descriptor, self._size_bytes)
            raise ProfilingError(
                f"{self.path}: the journal cannot be written: {fault.strerror}; what it held before is kept. Make room,"
                " or journal into another directory, and run again"
            ) from fault
        self._size_bytes += len(lines)

    def _read(self) -> None:
        content = b"".join(iter(lambda: os.read(self._descriptor, 1 << 20), b""))
        lines = content.split(b"\n")
        torn = lines.pop()
        for number, line in enumerate(lines, 1):
            self._take(number, line)
        self._size_bytes = len(content) - len(torn)
        if not torn:
            return
        beginning = torn.startswith(_BEGINNING) or _BEGINNING.startswith(torn) or not torn.strip(b"\0")
        if not beginning or _is_whole(torn):
            self._take(len(lines) + 1, torn)  # which else says that this is no journal
            self._size_bytes += len(torn) + os.write(self._descriptor, b"\n")
        else:
            os.ftruncate(self._descriptor, self._size_bytes)  # a kill came between: that measurement is made again

    def _take(self, number: int, line: bytes) -> None:
        try:
            content = parse_json(line)
            if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
                raise ProfileError(f"its format is not {_FORMAT}")
            subject = ProfileSubject.from_dict(content.pop("subject", None)).to_dict()
            own = subject == self._subject
            disturbance = None
            if _DISTURBANCE in content:
                disturbance = run_disturbance_from_dict(_DISTURBANCE, content.pop(_DISTURBANCE))
            asked: object = None
            if content == _FORGET:
                if own:
                    self._clear()
            elif set(content) == {_POINT}:
                configuration, ways, point = point_from_dict("point of scalability", content[_POINT])
                if own:
                    asked = configuration, ways
                    self._points[configuration, ways] = point
            elif set(content) == {_TIMES}:
                lane, sizes, times = times_from_dict("times of batches", content[_TIMES])
                if own:
                    asked = lane, sizes
                    self._times[lane, sizes] = times
            else:
                configuration, reached = run_from_dict("evaluation", content)
                if own:
                    self._runs[configuration].append((reached, disturbance))
            if disturbance is not None and asked is not None:
                self._disturbances[asked] = disturbance
        except ValueError as fault:  # a ProfileError, SpecError, or JSON's
            raise ProfilingError(
                f"{self.path}: line {number} is damaged: {fault}. Remove that line, or journal into another directory"
            ) from None


def _is_whole(line: bytes) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _check(configuration: Configuration, measured: Mapping[str, float | str | None]) -> None:
    """Raises `MeasurementError` where a figure is none."""
    for name, value in measured.items():
        if isinstance(value, str) or (value is None and name in _MAY_BE_UNKNOWN):
            continue
        if value is None or math.isnan(value) or value < 0 or (math.isinf(value) and name != "tail_latency_ms"):
            raise MeasurementError(configuration, f"its measurement diverged: its {name} is {value}")


@contextmanager
def open_journal(directory: Path, subject: ProfileSubject, *, fresh: bool = False) -> Iterator[Journal]:
    """The journal in `directory`, which is made if it is not there; nobody else may open it meanwhile.

    With `fresh` the runs of `subject` that it holds do not count any more. Raises `ProfilingError` where it cannot be
    written, is in use, or is damaged.
    """
    path = directory / FILE_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as fault:
        raise ProfilingError(
            f"{path}: the journal cannot be written: {fault.strerror}; journal into another directory"
        ) from fault
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ProfilingError(
                f"{path}: another process profiles with this journal; two at once would disturb each other. Wait until"
                " it has ended"
            ) from None
        flush_directory(directory)
        journal = Journal(path, descriptor, subject)
        if fresh and journal.recorded:
            journal.forget()
        yield journal
    finally:
        os.close(descriptor)
