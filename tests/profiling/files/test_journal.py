import json
import math
import resource
from contextlib import contextmanager
from dataclasses import replace

import pytest

from hebe.planning.server_split.search import Limits, Reached, gradient_search
from hebe.planning.server_split.space import ParallelismSpace
from hebe.profile import LatencyProfile
from hebe.profiling.error import MeasurementError, ProfilingError
from hebe.profiling.files.journal import FILE_NAME, open_journal
from hebe.profiling.files.points import ScalabilityPoint
from hebe.profiling.files.profiled_model import ProfileSubject
from hebe.profiling.steady_machine import RunDisturbance
from hebe.scheduling.events import Stage
from hebe.server_configuration import Lane, Placement
from hebe.spec import SlaTarget

SUBJECT = ProfileSubject(
    "dlrm", 3, "ab12", "scripted", "a processor, 2 cores, 8 GiB", SlaTarget(20.0), "sizes production, seed 0"
)
ONE, OTHER = ((Lane(Placement.MODEL_ON_HOST, workers, 1, 64),) for workers in (1, 2))
BOTH = (Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, dense_workers=1), Lane(Placement.MODEL_ON_HOST, 1))


class Measurement:
    """Answers with 1, 2, 3... queries/s."""

    def __init__(self):
        self.asked = []

    def __call__(self, configuration):
        self.asked.append(configuration)
        return Reached(float(len(self.asked)), 50.5, 12.25)


def ask(directory, configurations, subject=SUBJECT, fresh=False):
    """What a session that asks for `configurations` is answered, and how many of them it measured."""
    live = Measurement()
    with open_journal(directory, subject, fresh=fresh) as journal:
        evaluate = journal.evaluating(live)
        told = [evaluate(configuration).qps for configuration in configurations]
        assert journal.measured == len(live.asked) == len(configurations) - journal.answered
        return told, len(live.asked)


def test_the_kth_asking_is_answered_by_the_kth_run(tmp_path):
    assert ask(tmp_path, [ONE, OTHER, ONE]) == ([1, 2, 3], 3)
    assert ask(tmp_path, [ONE, ONE, OTHER, BOTH]) == ([1, 3, 2, 1], 1)
    assert ask(tmp_path, [BOTH, ONE, ONE, ONE]) == ([1, 1, 3, 1], 1)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "din"}, {"version": 4}, {"identity": "cd"}, {"server": "another, 4 cores"}, {"load": "seed 1"},
        {"sla": SlaTarget(30.0)}, {"sla": SlaTarget(20.0, 99.0)},
    ],
)  # fmt: skip
def test_what_was_measured_of_something_else_does_not_answer(tmp_path, change):
    ask(tmp_path, [ONE])
    assert ask(tmp_path, [ONE], replace(SUBJECT, **change)) == ([1], 1)
    assert ask(tmp_path, [ONE], replace(SUBJECT, **change)) == ([1], 0)
    assert ask(tmp_path, [ONE]) == ([1], 0)


def test_a_fresh_session_measures_and_what_it_measured_is_what_counts_from_then_on(tmp_path):
    ask(tmp_path, [ONE, OTHER])
    ask(tmp_path, [ONE], other := replace(SUBJECT, model="din"))
    assert ask(tmp_path, [OTHER, ONE], fresh=True) == ([1, 2], 2)
    assert ask(tmp_path, [ONE, OTHER]) == ([2, 1], 0)
    assert ask(tmp_path, [ONE], other) == ([1], 0), "other subjects are left alone"


def test_a_run_survives_exactly_and_so_does_a_latency_that_nobody_measured(tmp_path):
    for told in (Reached(1 / 3, 0.1 + 0.2, 1e-9), Reached(0.0)):
        with open_journal(tmp_path, SUBJECT, fresh=True) as journal:
            journal.evaluating(lambda _, told=told: told)(ONE)
        with open_journal(tmp_path, SUBJECT) as journal:
            assert journal.recorded == 1
            assert journal.evaluating(Measurement())(ONE) == told
    assert math.isinf(told.tail_latency_ms)


class Metered(Measurement):
    """By a meter that is named."""

    def __init__(self, source):
        super().__init__()
        self.source = source

    def __call__(self, configuration):
        return replace(super().__call__(configuration), power_source=self.source, power_estimated=self.source == "use")


def test_only_runs_answer_whose_watts_are_from_where_they_are_from_now(tmp_path):
    def told(source, configurations):
        live = Metered(source)
        with open_journal(tmp_path, SUBJECT) as journal:
            ask = journal.evaluating(live, source)
            return [(ask(each).power_source, ask(each).power_estimated) for each in configurations], len(live.asked)

    assert told("use", [ONE]) == ([("use", True)], 2)
    assert told("RAPL", [ONE, OTHER]) == ([("RAPL", False)] * 2, 4)
    assert told("RAPL", [ONE]) == ([("RAPL", False)], 0)
    assert told("use", [ONE]) == ([("use", True)], 0)
    assert ask(tmp_path, [ONE, ONE, ONE, ONE]) == ([1, 2, 1, 2], 0), "whoever does not care has all of them"


def test_what_was_not_asked_for_is_told_with_all_runs_of_its_configuration(tmp_path):
    live = Metered("use")
    with open_journal(tmp_path, SUBJECT) as journal:
        ask = journal.evaluating(live, "use")
        assert [ask(each).qps for each in (ONE, ONE, OTHER, BOTH)] == [1, 2, 3, 4]
        assert journal.beside("use") == {}
    with open_journal(tmp_path, SUBJECT) as journal:
        ask = journal.evaluating(live, "use")
        ask(ONE)
        ask(OTHER)
        told = {each: [run.qps for run in runs] for each, runs in journal.beside("use").items()}
        assert told == {ONE: [1, 2], BOTH: [4]}
        assert journal.beside().keys() == told.keys()
        assert journal.beside("RAPL") == {}, "watts that do not compare"


def test_what_is_measured_by_another_meter_than_at_the_beginning_counts(tmp_path):
    """Its own source is told with it; what the journal answers is not mixed up by it."""
    live = Metered("use")
    with open_journal(tmp_path, SUBJECT) as journal:
        ask = journal.evaluating(live, "RAPL")
        assert [ask(ONE).qps, ask(ONE).qps] == [1, 2]
        assert ask(ONE).power_source == "use"


def test_what_disturbed_a_measurement_is_told_to_who_is_answered_with_it(tmp_path):
    """Of runs, of points and of times; not of what is measured in this session, nor of what nobody asked for."""
    quiet, loud = RunDisturbance(0.0, 10, 1.0), RunDisturbance(0.25, 10, 2.0)

    def session(noted, asked, fresh=False):
        with open_journal(tmp_path, SUBJECT, fresh=fresh) as journal:
            journal.noting(lambda: noted)
            evaluate = journal.evaluating(Measurement())
            scale = journal.scaling(lambda *_: ScalabilityPoint(1.0, 1e9, estimated=False))
            time = journal.timing(lambda *_: {Stage.WHOLE: LatencyProfile((16,), (0.001,), (0.0,))})
            for one in asked:
                evaluate(one)
            for _ in range(2):
                scale(ONE, None)
                time(ONE[0], [16])
            return journal.disturbances

    assert session(loud, [ONE, OTHER]) == ()
    assert session(quiet, [ONE, ONE]) == (loud,) * 3, "a run, the point and the times; the second run was measured"
    assert session(quiet, [ONE, ONE, OTHER]) == (loud, quiet, loud, loud, loud)
    assert session(quiet, [ONE], fresh=True) == ()
    assert session(quiet, [ONE]) == (quiet,) * 3
    session(None, [BOTH])
    assert session(loud, [BOTH]) == (quiet, quiet), "of that nobody knows"


def test_a_damaged_disturbance_is_named(tmp_path):
    with open_journal(tmp_path, SUBJECT) as journal:
        journal.noting(lambda: RunDisturbance(0.25, 10, 2.0))
        journal.evaluating(Measurement())(ONE)
    file = tmp_path / FILE_NAME
    file.write_bytes(file.read_bytes().replace(b'"denied": 0.25', b'"denied": null'))
    with pytest.raises(ProfilingError, match="line 1 is damaged: disturbance: denied is None"):
        ask(tmp_path, [ONE])


def test_times_of_batches_are_kept(tmp_path):
    timed = []
    lane = ONE[0]

    def time_batches(lane, batch_sizes):
        timed.append((lane, batch_sizes))
        return {Stage.WHOLE: LatencyProfile((16,), (0.001 * len(timed),), (0.0,))}

    def told(*asked, fresh=False):
        with open_journal(tmp_path, SUBJECT, fresh=fresh) as journal:
            ask = journal.timing(time_batches)
            return [round(1e3 * ask(*each)[Stage.WHOLE].service_s[0]) for each in asked]

    assert told((lane, [16]), (lane, [16, 64]), (OTHER[0], [16])) == [1, 2, 3]
    assert told((OTHER[0], [16]), (lane, (16,)), (lane, [16])) == [3, 1, 1]
    assert len(timed) == 3
    assert told((lane, [16]), fresh=True) == [4]
    assert told((lane, [16])) == [4]
    assert ask(tmp_path, [ONE]) == ([1], 1)


def test_damaged_times_of_batches_are_named(tmp_path):
    with open_journal(tmp_path, SUBJECT) as journal:
        journal.timing(lambda *_: {Stage.WHOLE: LatencyProfile((16,), (0.5,), (0.0,))})(ONE[0], [16])
    file = tmp_path / FILE_NAME
    file.write_bytes(file.read_bytes().replace(b"[0.5]", b"[1e999]"))
    with pytest.raises(ProfilingError, match="line 1 is damaged: latency profile: service_s must be positive"):
        ask(tmp_path, [ONE])


def test_a_point_that_a_search_has_measured_is_not_measured_again(tmp_path):
    tried = {ONE: Reached(70.0, 1.0, bandwidth_bytes_per_s=2e9, bandwidth_estimated=False), OTHER: Reached(80.0, 1.0)}
    measured = []

    def measure(configuration, cache_ways):
        measured.append((configuration, cache_ways))
        return ScalabilityPoint(1.0, 1e9, estimated=True)

    with open_journal(tmp_path, SUBJECT) as journal:
        scale = journal.scaling(measure, tried)
        assert scale(ONE, None) == ScalabilityPoint(70.0, 2e9, estimated=False, power_watts=1.0)
        assert scale(ONE, 4).qps == scale(OTHER, None).qps == 1.0
    assert measured == [(ONE, 4), (OTHER, None)], "fewer ways, and where traffic is not known"


def test_a_search_that_was_ended_goes_on_where_it_was(tmp_path):
    """With noise, that is with configurations asked for again; ended after every single evaluation in turn."""
    space, limits = ParallelismSpace(4, (16, 64), (Placement.MODEL_ON_HOST,)), Limits(noise=0.1)

    def measure(configuration):
        (here,) = configuration
        return Reached(100.0 + 9 * here.workers - here.cores_per_worker, 1.0, 5.0)

    whole = gradient_search(space, measure, limits)
    assert whole.evaluations > len(whole.tried)
    measured = 0

    class Ended(BaseException):
        pass

    while True:
        fuel = iter(range(1))

        def once(configuration, fuel=fuel):
            if next(fuel, None) is None:
                raise Ended
            return measure(configuration)

        with open_journal(tmp_path, SUBJECT) as journal:
            try:
                found = gradient_search(space, journal.evaluating(once), limits)
            except Ended:
                continue
            finally:
                measured += journal.measured
        break
    assert found == whole
    assert measured == whole.evaluations


def test_a_last_line_of_which_only_the_end_is_missing_counts(tmp_path):
    ask(tmp_path, [ONE, OTHER])
    file = tmp_path / FILE_NAME
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert ask(tmp_path, [ONE, OTHER, ONE]) == ([1, 2, 1], 1)
    assert file.read_bytes().startswith(whole)


def test_a_last_line_that_is_damaged_is_told_whether_it_has_an_end_or_not(tmp_path):
    ask(tmp_path, [ONE, OTHER])
    file = tmp_path / FILE_NAME
    damaged = file.read_bytes()[:-1].replace(b'"qps": 2.0', b'"qps": -2.0')
    file.write_bytes(damaged)
    with pytest.raises(ProfilingError, match=r"line 2 is damaged: evaluation: qps is -2\.0"):
        ask(tmp_path, [ONE])
    assert file.read_bytes() == damaged


@pytest.mark.parametrize("kept", [1, 5, 11, 60, -2])
def test_a_line_that_a_kill_has_torn_is_measured_again(tmp_path, kept):
    ask(tmp_path, [ONE, OTHER])
    file = tmp_path / FILE_NAME
    first, second = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + second[:kept])
    assert ask(tmp_path, [ONE, OTHER, ONE]) == ([1, 1, 2], 2)
    assert len(file.read_bytes().splitlines()) == 3


def test_what_a_power_failure_leaves_of_a_line_is_cut_off(tmp_path):
    ask(tmp_path, [ONE])
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b"\0" * 100)
    assert ask(tmp_path, [ONE, OTHER]) == ([1, 1], 1)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda line: line[: len(line) // 2], "Unterminated string|Expecting"),
        (lambda _: b"", "Expecting value"),
        (lambda _: b"[1]", "format"),
        (lambda _: b"[" * 100_000, "recursion"),
        (lambda line: line.replace(b'"format": 1', b'"format": 2'), "format is not 1"),
        (lambda line: line.replace(b'"qps": 1.0', b'"qps": NaN'), "NaN"),
        (lambda line: line.replace(b'"qps": 1.0', b'"qps": -1.0'), "qps is -1.0"),
        (lambda line: line.replace(b'"qps": 1.0', b'"qps": 1' + b"0" * 400), "must be a finite number"),
        (lambda line: line.replace(b'"qps": 1.0', b'"qps": "many"'), "qps is 'many'"),
        (lambda line: line.replace(b'"qps": 1.0', b'"qps": 1e999'), "qps is inf: must be a finite number"),
        (lambda line: line.replace(b'"power_watts": 50.5', b'"power_watts": 0'), "power_watts is 0"),
        (lambda line: line.replace(b'"qps": 1.0, ', b""), "'qps' is missing"),
        (lambda line: line.replace(b'"workers": 1', b'"workers": 0'), "workers is 0"),
        (lambda line: line.replace(b'"version": 3', b'"version": "3"'), "version is '3'"),
        (lambda line: line.replace(b'"latency_ms": 20.0', b'"latency_ms": -1'), "latency_ms is -1"),
        (lambda line: line.replace(b"production", b"\xff\xfe"), "decode"),
    ],
)
def test_a_damaged_line_is_named_and_nothing_is_changed(tmp_path, damage, fault):
    ask(tmp_path, [ONE, OTHER])
    file = tmp_path / FILE_NAME
    first, second = file.read_bytes().splitlines()
    file.write_bytes(damaged := second + b"\n" + damage(first) + b"\n" + second + b"\n")
    with pytest.raises(ProfilingError, match=rf"{FILE_NAME}: line 2 is damaged: .*({fault})"):
        ask(tmp_path, [ONE])
    assert file.read_bytes() == damaged


def test_a_file_that_is_no_journal_is_left_alone(tmp_path):
    file = tmp_path / FILE_NAME
    file.write_text("something else")
    with pytest.raises(ProfilingError, match="line 1 is damaged"):
        ask(tmp_path, [ONE])
    assert file.read_text() == "something else"


def points(directory, asked, subject=SUBJECT, fresh=False):
    """What a session is answered that asks for these points of a scalability profile, and how many it measured."""
    measured = []

    def measure(configuration, cache_ways):
        measured.append((configuration, cache_ways))
        return ScalabilityPoint(float(len(measured)), 1e9, estimated=False)

    with open_journal(directory, subject, fresh=fresh) as journal:
        scale = journal.scaling(measure)
        return [scale(*each).qps for each in asked], len(measured)


def test_points_of_a_scalability_profile_are_kept_apart_from_runs(tmp_path):
    ask(tmp_path, [ONE])
    assert points(tmp_path, [(ONE, None), (OTHER, None), (ONE, 4)]) == ([1, 2, 3], 3)
    assert points(tmp_path, [(ONE, 4), (ONE, None), (OTHER, 4)]) == ([3, 1, 1], 1)
    assert points(tmp_path, [(ONE, None)], replace(SUBJECT, model="din")) == ([1], 1)
    assert ask(tmp_path, [ONE, OTHER, ONE]) == ([1, 1, 2], 2)
    assert points(tmp_path, [(OTHER, None), (ONE, 4)], fresh=True) == ([1, 2], 2)
    assert points(tmp_path, [(ONE, 4), (OTHER, None), (ONE, None)]) == ([2, 1, 1], 1)


def test_a_point_of_a_scalability_profile_that_diverged_is_not_recorded(tmp_path):
    told = ScalabilityPoint(1.0, math.nan, estimated=False)
    with open_journal(tmp_path, SUBJECT) as journal, pytest.raises(ProfilingError, match="diverged: its bandwidth"):
        journal.scaling(lambda *_: told)(ONE, None)
    assert points(tmp_path, [(ONE, None)]) == ([1], 1)


def test_a_damaged_point_of_a_scalability_profile_is_named(tmp_path):
    points(tmp_path, [(ONE, 4)])
    file = tmp_path / FILE_NAME
    file.write_bytes(file.read_bytes().replace(b'"cache_ways": 4', b'"cache_ways": -4'))
    with pytest.raises(ProfilingError, match="line 1 is damaged: point of scalability: cache_ways is -4"):
        points(tmp_path, [(ONE, 4)])


@pytest.mark.parametrize(
    "told",
    [Reached(math.nan), Reached(-1.0), Reached(math.inf), Reached(1.0, math.nan), Reached(1.0, 0.0, 5.0)],
)
def test_a_measurement_that_diverged_is_not_recorded(tmp_path, told):
    with (
        open_journal(tmp_path, SUBJECT) as journal,
        pytest.raises(MeasurementError, match=r"^placement model-on-host, workers 1, .*diverged: its") as failed,
    ):
        journal.evaluating(lambda _: told)(ONE)
    assert failed.value.configuration == ONE
    assert ask(tmp_path, [ONE]) == ([1], 1)


def test_what_is_kept_is_counted(tmp_path):
    ask(tmp_path, [ONE, OTHER, ONE])
    points(tmp_path, [(ONE, 4)])
    with open_journal(tmp_path, SUBJECT) as journal:
        assert journal.kept == journal.recorded == 4
        journal.evaluating(Measurement(), "somewhere else")(OTHER)
        assert journal.kept == 5
        journal.forget()
        assert journal.kept == 0


def test_two_profilers_at_once_are_one_too_many(tmp_path):
    with (
        open_journal(tmp_path, SUBJECT),
        pytest.raises(ProfilingError, match="another process profiles"),
        open_journal(tmp_path, SUBJECT),
    ):
        pass
    assert ask(tmp_path, [ONE]) == ([1], 1)


def test_a_directory_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ProfilingError, match="cannot be written: Not a directory; journal into another"):
        ask(tmp_path / "file" / "journal", [ONE])
    (tmp_path / "there" / FILE_NAME).mkdir(parents=True)
    with pytest.raises(ProfilingError, match="cannot be written: Is a directory"):
        ask(tmp_path / "there", [ONE])


@contextmanager
def files_of_at_most(size_bytes):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_where_the_disk_takes_no_more_that_is_told_and_what_was_recorded_stays(tmp_path):
    ask(tmp_path, [ONE])
    file = tmp_path / FILE_NAME
    before = file.read_bytes()
    with open_journal(tmp_path, SUBJECT) as journal:
        evaluate = journal.evaluating(Measurement())
        with (
            files_of_at_most(len(before) + 30),
            pytest.raises(ProfilingError, match=r"cannot be written: .*what it held before is kept"),
        ):
            evaluate(OTHER)
        assert file.read_bytes() == before
        assert evaluate(OTHER).qps == 2, "once there is room again"
    assert ask(tmp_path, [ONE, OTHER]) == ([1, 2], 0)


def test_lines_are_plain_json(tmp_path):
    ask(tmp_path, [BOTH])
    (line,) = (tmp_path / FILE_NAME).read_text().splitlines()
    content = json.loads(line)
    assert content["subject"] == SUBJECT.to_dict()
    assert content["configuration"]["beside_placement"] == "model-on-host"
    assert (content["qps"], content["tail_latency_ms"]) == (1.0, 12.25)
