"""Searches of a server that only seems to run: what is measured, what is measured again, and what is left of it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from hebe.cli.profile.checks import STRATEGIES
from hebe.machine.meters.processor import BusyMachine, BusyProcess
from hebe.planning.server_split.search import Step
from hebe.profiling.error import MeasurementError, ProfilingError
from hebe.profiling.files.journal import FILE_NAME, open_journal
from hebe.profiling.files.plain_data import LATER_RUN_FIELDS
from hebe.profiling.files.points import ScalabilityPoint
from hebe.profiling.files.server_profile import read_server_profile
from hebe.profiling.search import SEARCHES
from hebe.server_configuration import Placement, to_dict
from hebe.spec import SlaTarget
from hebe.workload.key_skew import ReuseKeys
from tests.examples.seeming_server import BEST, LATENCY, flat, profiled, run, run_as_typed

pytestmark = pytest.mark.usefixtures("unpictured")


def test_what_was_measured_is_not_measured_again(capsys, repository, live):
    first, _ = profiled(capsys, repository)
    asked = len(live.asked)
    again, shown = profiled(capsys, repository, "--strategy", "hercules", "--power-budget-w", "1000")
    assert len(live.asked) == asked
    assert again["answered_by_journal"] == again["evaluations"] == first["evaluations"]
    assert again["efficiency"] == first["efficiency"]
    assert f"{asked} of {asked} configurations, {asked} answered by the journal" in shown
    profiled(capsys, repository, "--fresh")
    assert len(live.asked) == 2 * asked


@pytest.mark.parametrize(
    "other",
    [
        ("--sla-ms", 49),
        ("--percentile", 95),
        ("--seed", 1),
        ("--sizes", "fixed:10"),
        ("--quick",),
        ("--graph", "compiled"),
        ("--row-format", "int8"),
    ],
)
def test_what_was_measured_otherwise_is_measured_anew(capsys, repository, live, other):
    profiled(capsys, repository, "--strategy", "deeprecsys")
    asked = len(live.asked)
    profiled(capsys, repository, "--strategy", "deeprecsys", *other)
    assert len(live.asked) == 2 * asked


@pytest.mark.parametrize(
    ("option", "file"), [("--keys", "reuse:{}:table"), ("--arrivals", "trace:{}:200"), ("--key-trace", "{}")]
)
def test_what_was_measured_by_a_file_that_was_rewritten_is_measured_anew(capsys, repository, live, option, file):
    hot = ("--placement", "hot-sparse-on-accelerator") if option == "--key-trace" else ()
    asked, loads = [], []
    for content in ("first", "first", "second"):
        write_load_file(Path("load.file"), option, content)
        told, _ = profiled(capsys, repository, "--batch-sizes", 16, option, file.format("load.file"), *hot)
        asked.append(len(live.asked))
        loads.append(told["subject"]["load"])
    assert asked[0] == asked[1]
    assert asked[2] == 2 * asked[0]
    assert loads[0] == loads[1] != loads[2]


def write_load_file(path, option, content):
    more = int(content == "second")
    if option == "--key-trace":
        save_file({"ads": np.array([3, 3, 1 + more], np.int64)}, path)
    elif option == "--arrivals":
        path.write_text(f"time_s,rate_qps\n0,1\n60,{2 + more}\n")
    else:
        rows = {"1": 0.5 - 0.1 * more, "2": 0.3 + 0.1 * more, "inf": 0.2}
        lookups = {"1": 0.3, "2": 0.4, "inf": 0.3}
        kinds = {"rows_by_reuse": rows, "lookups_by_reuse": lookups}
        lines = [f"table,{kind},{bound},{share}" for kind, own in kinds.items() for bound, share in own.items()]
        path.write_text("\n".join(["file,kind,bin_hi,fraction", *lines]) + "\n")


def test_a_journal_that_does_not_say_where_watts_are_from_is_read_and_measured_anew(capsys, repository, live, tmp_path):
    profiled(capsys, repository)
    asked, file = len(live.asked), tmp_path / "profiles" / "journal" / FILE_NAME
    older = [json.loads(line) for line in file.read_text().splitlines()]
    for line in older:
        for field in LATER_RUN_FIELDS:
            line.pop(field, None)
    file.write_text("".join(json.dumps(line) + "\n" for line in older))
    told, _ = profiled(capsys, repository)
    assert (len(live.asked), told["answered_by_journal"]) == (2 * asked, 0)


def test_a_scalability_profile_is_of_what_the_search_measured_where_it_did(capsys, repository, live, tmp_path):
    live.traffic = 3e9
    profiled(capsys, repository)
    assert live.points == [(2, 2)], "fewer ways were not the search's to measure"
    profile = read_server_profile(tmp_path / "profiles" / "tiny.json")
    assert profile.scalability is not None
    assert profile.scalability.qps[-1] == profile.efficiency.qps == 1000.0


def test_a_point_of_scalability_that_beats_the_winner_is_held_against_it(capsys, repository, live):
    """The machine stalled while the best was measured, as that of one other was: a third one won."""
    won = replace(BEST, workers=1)
    live.first_qps = {BEST: [50.0], replace(BEST, cores_per_worker=1): [60.0]}
    only = ("--placement", "model-on-host", "--batch-sizes", "256")
    missed, _ = profiled(capsys, repository, *only, "--journal", "other")
    assert (missed["closest"]["configuration"], missed["closest"]["qps"]) == (to_dict((won,)), 500.0)
    live.asked.clear()
    live.worker_qps = 600.0
    told, shown = profiled(capsys, repository, *only)
    made = read_server_profile(Path("profiles/tiny.json"))
    assert made.configuration == (BEST,)
    assert made.efficiency.qps == told["efficiency"]["qps"] == told["path"][-1]["qps"] == 1000.0
    assert made.latency
    assert live.asked_latency == (BEST,)
    assert live.asked[-4:].count((BEST,)) == live.asked[-4:].count((won,)) == 2, "measured again, three times in all"
    assert made.search.steps[-1] == Step((won,), ((BEST,),), (BEST,))
    words = (
        "Beside this search model-on-host, 2 workers of 2 cores, batches of 256 reached 1,200 queries/s, where its "
        "best reached 500. Both were measured again, and by the medians the better one is model-on-host, 2 workers of"
    )
    assert words in told["remarks"][0]
    assert words in flat(shown)
    asked = len(live.asked)
    again, _ = profiled(capsys, repository, *only)
    assert len(live.asked) == asked, "all of that is in the journal"
    own = {"answered_by_journal": 0, "remarks": []}
    assert {**again, **own} == {**told, **own}


def test_a_point_of_scalability_that_was_lucky_changes_nothing(capsys, repository, live):
    live.worker_qps = 1500.0
    live.first_qps = {BEST: [1000.0, 990.0, 1010.0]}
    told, _ = profiled(capsys, repository, "--batch-sizes", "256")
    made = read_server_profile(Path("profiles/tiny.json"))
    assert made.configuration == (BEST,)
    assert told["efficiency"]["qps"] == 1000.0
    assert made.search.steps[-1] == Step((BEST,), ((replace(BEST, workers=1),),), None)
    assert "the better one is model-on-host, 2 workers of 2 cores" in told["remarks"][0]


BUDGET = ("--placement", "model-on-host", "--batch-sizes", "256", "--power-budget-w", "21.5")
"""Which configurations of one core keep."""


@pytest.mark.parametrize("strategy", ["exhaustive", "hercules"])
def test_a_point_of_scalability_that_draws_too_much_is_no_better_one(capsys, repository, live, strategy):
    live.worker_qps = 300.0
    told, _ = profiled(capsys, repository, *BUDGET, "--strategy", strategy)
    assert told["efficiency"]["qps"] == pytest.approx(1000 / 3)
    assert not [remark for remark in told["remarks"] if "Beside this search" in remark]
    made = read_server_profile(Path("profiles/tiny.json"))
    assert made.scalability is not None
    assert made.scalability.qps == (300.0, 600.0)


@pytest.mark.parametrize(("watts", "beside"), [(0.0, False), (21.0, True)])
def test_with_a_power_budget_points_of_which_no_watts_are_known_say_nothing(
    capsys, repository, live, monkeypatch, watts, beside
):
    def point(configuration, _cache_ways):
        return ScalabilityPoint(600.0 * configuration[0].workers, 1e9, estimated=False, power_watts=watts)

    monkeypatch.setattr(live, "scalability_point", point)
    told, _ = profiled(capsys, repository, *BUDGET)
    assert any("Beside this search" in remark for remark in told["remarks"]) is beside


@pytest.mark.usefixtures("live")
def test_what_the_journal_knows_is_told_where_a_strategy_finds_nothing(capsys, repository):
    profiled(capsys, repository, *BUDGET, "--strategy", "exhaustive")
    code, out, _ = run(capsys, repository, *BUDGET, "--strategy", "deeprecsys")
    assert code == 3
    told = flat(out)
    assert (
        "queries/s, where it found nothing that keeps the limits: --strategy deeprecsys keeps to its own way." in told
    )
    assert "more than its best" not in told


@pytest.mark.parametrize(
    ("options", "qps"),
    [(("--strategy", "hercules"), 1000.0), (("--strategy", "deeprecsys"), 250.0), (("--batch-sizes", "64"), None)],
)
def test_what_the_journal_knows_better_is_held_against_what_was_found(capsys, repository, live, options, qps):
    """A search before had a second look at what was slow when it was measured first."""
    live.first_qps = {BEST: [50.0]}
    alone, _ = profiled(capsys, repository, *options, "--journal", "other")
    live.asked.clear()
    asked_three_times(live)
    told, _ = profiled(capsys, repository, *options)
    if options[0] == "--batch-sizes":
        assert (told["efficiency"], told["remarks"]) == (alone["efficiency"], []), "it is not among what may be tried"
    elif qps == 250.0:
        assert told["efficiency"]["qps"] == alone["efficiency"]["qps"] == qps
        assert "--strategy deeprecsys keeps to its own way" in told["remarks"][0]
    else:
        assert told["efficiency"]["qps"] == qps > alone["efficiency"]["qps"]
        assert live.asked.count((BEST,)) == 3


def asked_three_times(live):
    """Into the journal, as a search would that compares the best with another."""
    subject = read_server_profile(Path("profiles/tiny.json")).subject
    with open_journal(Path("profiles/journal"), subject) as journal:
        ask = journal.evaluating(live, live.power_source)
        assert [ask((BEST,)).qps for _ in range(3)] == [50.0, 1000.0, 1000.0]


SMALL = ("--placement", "model-on-host", "--batch-sizes", 64, "--sizes", "fixed:64")


def test_by_default_only_what_may_win_is_measured(capsys, repository, live):
    code, out, err = run_as_typed(capsys, repository, *SMALL, "--json")
    told = json.loads(out.splitlines()[-1])
    assert (code, told["strategy"]) == (0, "guided"), err
    assert len(live.asked) <= 3
    assert live.timed
    code, out, err = run_as_typed(capsys, repository, "--placement", "sparse-on-host", "--batch-sizes", 16, "--json")
    assert (code, json.loads(out.splitlines()[-1])["strategy"]) == (0, "hercules"), err


def test_batches_that_were_timed_are_not_timed_again(capsys, repository, live):
    live.fault_at, live.fault = 1, KeyboardInterrupt()
    assert run_as_typed(capsys, repository, *SMALL)[0] == 130
    timed, live.fault_at = list(live.timed), None
    assert run_as_typed(capsys, repository, *SMALL)[0] == 0
    assert live.timed[:-1] == timed  # and the winner
    assert run_as_typed(capsys, repository, *SMALL)[0] == 0
    assert live.timed[:-1] == timed
    assert run_as_typed(capsys, repository, *SMALL, "--fresh")[0] == 0
    assert live.timed == 2 * live.timed[: len(timed) + 1]


def test_the_winner_is_timed_while_all_its_workers_are_at_it(capsys, repository, live):
    _, shown = profiled(capsys, repository)
    assert live.timed == [(BEST, (16, 64))]
    made = read_server_profile(Path("profiles/tiny.json"))
    assert made.busy_latency == {"whole": LATENCY}
    assert "while all workers are at it, whole: plans go by these times" in shown
    profiled(capsys, repository, "--placement", "pipeline-on-host")
    assert read_server_profile(Path("profiles/tiny.json")).busy_latency == {}


def test_what_was_measured_afresh_is_gone_on_with_without_that_option(capsys, repository, live):
    live.fault_at, live.fault = 3, KeyboardInterrupt()
    _, out, _ = run(capsys, repository, "--fresh")
    assert "3 measurements are in profiles/journal: the same command without --fresh goes on." in out


def test_what_is_not_measured_afresh_in_the_end_is_not_forgotten(capsys, repository, live):
    profiled(capsys, repository)
    asked = len(live.asked)
    live.fault_at, live.fault = asked, KeyboardInterrupt()
    assert run(capsys, repository, "--fresh")[:2] == (130, "Interrupted before anything was measured.\n")
    told, _ = profiled(capsys, repository)
    assert len(live.asked) == asked
    assert told["answered_by_journal"] == told["evaluations"]


def test_interrupted_while_batches_are_timed_it_says_that_these_are_kept(capsys, repository, live, monkeypatch):
    timed, times = [], live.busy_profiles

    def interrupted_after_two(lane, sizes):
        if len(timed) == 2:
            raise KeyboardInterrupt
        timed.append(lane)
        return times(lane, sizes)

    monkeypatch.setattr(live, "busy_profiles", interrupted_after_two)
    code, out, _ = run_as_typed(capsys, repository, *SMALL)
    assert (code, out) == (130, "Interrupted. 2 measurements are in profiles/journal: the same command goes on.\n")


@pytest.mark.parametrize(("at", "kept"), [(0, ""), (1, " 1 measurement is"), (3, " 3 measurements are")])
def test_a_measurement_that_fails_is_said_in_words_and_that_the_same_command_goes_on(
    capsys, repository, live, at, kept
):
    live.fault_at, live.fault = at, MeasurementError((BEST,), "it did not settle within 60 s: is the machine busy?")
    code, _, err = run(capsys, repository)
    assert code == 1
    goes_on = f"{kept} in profiles/journal: the same command goes on." if kept else ""
    assert err.splitlines()[-1] == (
        "error: model-on-host, 2 workers of 2 cores, batches of 256: it did not settle within 60 s: is the machine "
        f"busy?{goes_on}"
    )


def test_a_measurement_that_is_no_number_is_said_in_words(capsys, repository, live):
    live.traffic = -1.0
    code, _, err = run(capsys, repository)
    assert code == 1
    assert "model-on-host, 1 worker of 1 core, batches of 16: its measurement diverged: its bandwidth" in err
    assert "{" not in err


def test_without_a_terminal_every_evaluation_is_a_line(capsys, repository, live):
    _, shown = profiled(capsys, repository)
    lines = [line for line in shown.splitlines() if line.startswith("evaluation ")]
    assert len(lines) == len(live.asked)
    assert lines[0] == ("evaluation 1: model-on-host, 1 worker of 1 core, batches of 16: 142.9 queries/s")


def test_cores_that_lie_otherwise_are_measured_anew(capsys, repository, live, monkeypatch, tmp_path):
    monkeypatch.setattr("hebe.machine.pinning.available_cores", lambda: (0, 1, 2, 3))
    monkeypatch.setattr("hebe.profiling.search.steady_machine", lambda *_: None)  # there may be fewer cores here
    monkeypatch.setattr("hebe.profiling.search.core_layout", lambda cores: f"lie {cores[1] - cores[0]} apart")
    first, _ = profiled(capsys, repository, "--cores", "0,1", "--output", "near.json")
    asked = len(live.asked)
    like, _ = profiled(capsys, repository, "--cores", "2,3", "--output", "near.json")
    assert (first["answered_by_journal"], like["answered_by_journal"]) == (0, like["evaluations"])
    assert len(live.asked) == asked
    other, _ = profiled(capsys, repository, "--cores", "0,2")
    assert other["answered_by_journal"] == 0
    assert len(live.asked) == 2 * asked
    assert read_server_profile(tmp_path / "profiles" / "tiny.json").subject.layout == "lie 2 apart"


@pytest.mark.usefixtures("live")
def test_a_damaged_figure_in_the_journal_names_its_line(capsys, repository, tmp_path):
    profiled(capsys, repository)
    file = tmp_path / "profiles" / "journal" / FILE_NAME
    for damage in ('"qps": 1e999', '"power_watts": 0.0'):
        field = damage.partition(":")[0]
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join([lines[0], re.sub(rf"{field}: [0-9.]+", damage, lines[1]), *lines[2:]]))
        code, _, err = run(capsys, repository)
        assert code == 1
        assert f"{FILE_NAME}: line 2 is damaged: evaluation: {field.strip(chr(34))} is " in err
        file.write_text("".join(lines))


def test_an_interrupted_search_goes_on_where_it_was(capsys, repository, live, tmp_path):
    whole, _ = profiled(capsys, repository, "--journal", tmp_path / "other")
    asked, live.asked = len(live.asked), []
    live.fault_at, live.fault = 5, KeyboardInterrupt()
    code, out, err = run(capsys, repository, "--json", "--output", "profile.json")
    assert code == 130
    assert "Interrupted. 5 measurements are in profiles/journal: the same command goes on. Best so far: " in err
    assert json.loads(out.splitlines()[-1]) == {
        "interrupted": True,
        "evaluations": 5,
        "measurements": 5,
        "journal": "profiles/journal",
    }
    assert not (tmp_path / "profile.json").exists()
    live.fault_at = None
    told, _ = profiled(capsys, repository, "--output", "profile.json")
    assert len(live.asked) == asked
    assert told["answered_by_journal"] == 5
    assert {**told, "answered_by_journal": 0} == {**whole, "profile": "profile.json", "picture": "profile.svg"}


def test_interrupted_while_the_winner_is_measured_it_goes_on_there(capsys, repository, live, tmp_path):
    live.killed_at = 2
    assert run(capsys, repository)[0] == 130
    assert not (tmp_path / "profiles" / "tiny.json").exists()
    asked, live.killed_at = len(live.asked), None
    profiled(capsys, repository)
    assert len(live.asked) == asked
    assert live.points == [(1, None), (2, None), (2, 2)]
    scalability = read_server_profile(tmp_path / "profiles" / "tiny.json").scalability
    assert scalability is not None
    assert (scalability.qps, scalability.qps_by_cache_ways) == ((100.0, 200.0), ((), (150.0, 200.0)))


def test_an_evaluation_that_fails_keeps_those_before(capsys, repository, live, tmp_path):
    live.fault_at, live.fault = 3, ProfilingError("the machine is busy: try again later")
    code, out, err = run(capsys, repository, "--json")
    assert code == 1
    assert "error: the machine is busy: try again later" in err
    assert json.loads(out.splitlines()[-1]) == {"error": "the machine is busy: try again later"}
    assert not (tmp_path / "profiles" / "tiny.json").exists()
    live.fault_at = None
    told, _ = profiled(capsys, repository)
    assert told["answered_by_journal"] == 3


def test_a_measurement_of_nothing_is_doubted_also_where_the_journal_says_so(capsys, repository, live):
    live.first_qps = {BEST: [0.0]}
    told, shown = profiled(capsys, repository, "--journal", "other")
    assert told["efficiency"]["qps"] == 1000.0
    assert "batches of 256: late" in shown
    at = live.asked.index((BEST,)) + 1
    live.asked.clear()
    live.fault_at, live.fault = at, KeyboardInterrupt()
    assert run(capsys, repository)[0] == 130
    live.fault_at = None
    told, _ = profiled(capsys, repository)
    assert (told["efficiency"]["qps"], told["answered_by_journal"]) == (1000.0, at)


@pytest.mark.usefixtures("live")
@pytest.mark.parametrize(
    ("strategy", "evaluations"),
    [("deeprecsys", 6), ("exhaustive", 119), ("random", 24), ("hercules", None), ("algorithm-1", None)],
)
def test_strategies(capsys, repository, strategy, evaluations):
    told, shown = profiled(capsys, repository, "--strategy", strategy)
    assert told["space"] == 119
    assert told["evaluations"] == evaluations or evaluations is None
    assert ("The best 10 of" in shown) == (strategy in ("exhaustive", "random"))
    if strategy != "random":
        assert told["efficiency"]["qps"] == 1000.0 or strategy == "deeprecsys"


def test_what_may_win_by_the_times_of_batches_is_measured(capsys, repository, live):
    told, _ = profiled(
        capsys, repository, "--strategy", "guided", "--placement", "model-on-host", "--sizes", "fixed:64",
        "--batch-sizes", "64",
    )  # fmt: skip
    assert told["evaluations"] == len(live.asked) <= 3
    assert live.asked[0][0].workers == 4, "its batches take as long on two cores as on one"
    lanes = [(lane.workers, lane.cores_per_worker) for lane, _ in live.timed]
    kinds = [(1, 1), (4, 1), (1, 2), (2, 2), (1, 3), (1, 4)]
    assert lanes[: len(kinds)] == kinds, "one worker of each kind, and all that fit"
    assert {tuple(batch_sizes) for _, batch_sizes in live.timed} == {(16, 64)}


def test_options_reach_the_search_and_the_server(capsys, repository, live):
    told, _ = profiled(
        capsys, repository, "--placement", "pipeline-on-host", "--batch-sizes", "32,8,32", "--strategy", "random",
        "--evaluations", "3", "--seed", "7", "--sizes", "fixed:10", "--quick", "--percentile", "90",
    )  # fmt: skip
    assert len(live.asked) == told["evaluations"] == 3
    assert {lane.placement for (lane,) in live.asked} == {Placement.PIPELINE_ON_HOST}
    assert {lane.batch_size for (lane,) in live.asked} <= {8, 32}
    ((sla, workload, options),) = live.opened
    assert (sla, workload.seed, options["quick"]) == (SlaTarget(50.0, 90.0), 7, True)
    assert "sizes fixed:10, arrivals poisson, keys uniform, seed 7, quick" in told["subject"]["load"]


HOT = ("--placement", "hot-sparse-on-accelerator", "--batch-sizes", 16)


@pytest.mark.parametrize(("keys", "load"), [((), "reuse"), (("--keys", "uniform"), "uniform")])
def test_how_hot_rows_are_is_told_before_and_after(capsys, repository, live, tmp_path, keys, load):
    """Of the 20 rows of a table two are hot by default. With all rows alike, they get no more than their share."""
    told, shown = profiled(capsys, repository, *HOT, *keys)
    assert f"keys {load}, seed 0" in told["subject"]["load"]
    assert read_server_profile(tmp_path / "profiles" / "tiny.json").accelerator.keys == load
    ((_, workload, _),) = live.opened
    assert isinstance(workload.keys, ReuseKeys) == (load == "reuse")
    assert told["hot_share"]["bytes"] == pytest.approx(0.1)
    assert (told["hot_share"]["lookups"] > 0.5) == (load == "reuse")
    words = f"Hot rows take 10% of the tables' bytes, and {told['hot_share']['lookups']:.0%} of the lookups go to them"
    assert flat(shown).count(words) == 2
    assert flat(shown).count("little more than any others would") == 2 * (load == "uniform")


@pytest.mark.usefixtures("live")
def test_where_there_are_none_nothing_is_told_of_hot_rows(capsys, repository):
    told, shown = profiled(capsys, repository, "--placement", "sparse-on-host", "--batch-sizes", 16)
    assert told["hot_share"] is None
    assert "Hot rows" not in shown
    assert "keys uniform" in told["subject"]["load"]


def test_what_others_say_is_told_as_it_is(capsys, repository, live, monkeypatch):
    busiest = BusyProcess("[/kworker]", 7, 0.4)
    monkeypatch.setattr("hebe.profiling.search.busy_machine", lambda **_: BusyMachine(0.5, 0.0, (busiest,)))
    live.op_fault = RuntimeError("no kernel for [/b] [draft]")
    told, shown = profiled(capsys, repository)
    assert "most by [/kworker] (pid 7)" in shown
    assert "Time by class of op is left out: no kernel for [/b] [draft]" in shown
    assert told["op_use"] is None


@pytest.mark.usefixtures("live")
def test_algorithm_1_is_not_refined(capsys, repository):
    """Its path is what the refined search begins with, and every step of it has three candidates at most."""
    only = ("--placement", "model-on-host", "--fresh")
    refined, _ = profiled(capsys, repository, "--strategy", "hercules", *only)
    exact, shown = profiled(capsys, repository, "--strategy", "algorithm-1", *only)
    assert exact["strategy"] == read_server_profile(Path("profiles/tiny.json")).strategy == "algorithm-1"
    assert exact["path"] == refined["path"][: len(exact["path"])]
    assert exact["evaluations"] < refined["evaluations"]
    steps = [int(row.split()[0]) for row in shown.splitlines() if re.match(r" +\d+ +(model-on-host|none is)", row)]
    assert max(steps) == 3


def test_every_strategy_has_a_search():
    assert tuple(SEARCHES) == STRATEGIES


@pytest.mark.usefixtures("live")
@pytest.mark.parametrize(
    ("options", "patience_s"), [((), 300.0), (("--quick",), 0.0), (("--quick", "--patience-s", 20), 20.0)]
)
def test_how_long_it_waits_for_a_machine_that_others_disturb(capsys, repository, monkeypatch, options, patience_s):
    asked = []
    monkeypatch.setattr("hebe.profiling.search.steady_machine", lambda *machine: asked.append(machine))
    profiled(capsys, repository, *options)
    (_, given_s, _) = asked[0]
    assert given_s == patience_s


@pytest.mark.usefixtures("live")
def test_one_profiler_a_journal(capsys, repository, tmp_path):
    told, _ = profiled(capsys, repository)
    subject = read_server_profile(tmp_path / "profiles" / "tiny.json").subject
    with open_journal(tmp_path / "profiles" / "journal", subject):
        code, _, err = run(capsys, repository)
    assert code == 1
    assert "another process profiles with this journal" in err
    assert told["found"]
