"""What is shown of searches of a server that only seems to run."""

import itertools
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from hebe.cli.profile.results import _scaled, out_of_reach
from hebe.machine.meters.processor import BusyMachine, BusyProcess
from hebe.planning.server_split.search import Reached
from hebe.profiling.files.journal import FILE_NAME
from hebe.profiling.files.server_profile import read_server_profile
from hebe.profiling.steady_machine import Disturbance, RunDisturbance
from hebe.server_configuration import Lane, Placement
from hebe.spec import SlaTarget
from tests.examples.seeming_server import BEST, flat, profiled, run

pytestmark = pytest.mark.usefixtures("unpictured")


def test_watts_are_told_as_what_measured_them_read_them(capsys, repository, live, tmp_path):
    first, _ = profiled(capsys, repository)
    asked = len(live.asked)
    live.power_source, live.power_estimated = "RAPL", False
    told, shown = profiled(capsys, repository)
    assert len(live.asked) == 2 * asked, "watts that were read do not compare with watts that were estimated"
    assert (told["efficiency"]["estimated"], told["power_source"]) == (False, "RAPL")
    assert "24 W, by RAPL" in shown
    assert re.search(r"2 x 2 +256 +1,000 +24\n", shown)
    assert re.search(r"efficiency +41.67 queries/s per W", shown)
    live.power_source, live.power_estimated = "CPU utilization", True
    told, _ = profiled(capsys, repository)
    assert len(live.asked) == 2 * asked
    assert told["efficiency"] == first["efficiency"]
    assert (told["efficiency"]["estimated"], told["power_source"]) == (True, "CPU utilization")
    assert read_server_profile(tmp_path / "profiles" / "tiny.json").power_source == "CPU utilization"


def test_it_is_told_why_watts_are_estimated(capsys, repository, live):
    told, shown = profiled(capsys, repository)
    assert told["power_unreadable"] == list(live.power_unreadable)
    assert "Power of packages cannot be read: no meter" in shown


@pytest.mark.usefixtures("live")
def test_watts_that_were_not_read_are_marked(capsys, repository):
    _, shown = profiled(capsys, repository)
    assert re.search(r"2 x 2 +256 +1,000 +~24\n", shown)
    assert re.search(r"efficiency +~41.67 queries/s per W", shown)
    _, shown = profiled(capsys, repository, "--strategy", "exhaustive", "--placement", "model-on-host")
    assert re.search(r"2 x 2 +256 +1,000 +~24\n", shown)


@pytest.mark.parametrize("estimated", [True, False])
def test_a_budget_that_estimated_power_was_held_to_is_told_as_such(capsys, repository, live, estimated):
    live.power_estimated = estimated
    warned = "What keeps the power budget of 22 W was decided by power that is estimated, not read"
    told, shown = profiled(capsys, repository, "--power-budget-w", "22")
    assert (warned in flat(shown), any(words.startswith(warned) for words in told["remarks"])) == (estimated, estimated)
    _, out, _ = run(capsys, repository, "--power-budget-w", "5")
    assert f"queries/s at 21 W{' (estimated)' if estimated else ''}." in flat(out)
    told, shown = profiled(capsys, repository)
    assert "power budget" not in shown
    assert told["remarks"] == []


def test_the_use_of_cores_is_told_and_kept(capsys, repository, live, tmp_path):
    told, shown = profiled(capsys, repository)
    assert re.search(r"use of cores +80% of their time\n", shown)
    assert told["closest"]["cpu_share"] == max(step["cpu_share"] for step in told["path"]) == 0.8
    kept = read_server_profile(tmp_path / "profiles" / "tiny.json").search
    assert kept.tried[kept.best].cpu_share == 0.8
    live.cpu_share = None
    told, shown = profiled(capsys, repository, "--fresh")
    assert "use of cores" not in shown
    assert told["closest"]["cpu_share"] is None


def test_where_a_batch_s_time_goes_is_told_and_kept(capsys, repository, live, tmp_path):
    told, shown = profiled(capsys, repository)
    kept = read_server_profile(tmp_path / "profiles" / "tiny.json").op_use
    assert told["op_use"] == kept.to_dict()
    assert (kept.items, kept.seconds["embedding lookup"]) == (BEST.batch_size, 0.003)
    assert re.search(r"embedding lookup +3 +75%\s+fully connected +1 +25%", shown)
    assert "idle for so much of their time: 25% of 2" in shown
    live.op_fault = RuntimeError("cannot be exported")
    told, shown = profiled(capsys, repository, "--fresh")
    assert told["op_use"] is None
    assert "Where the time" not in shown


def test_stated_power_is_what_is_estimated_from(capsys, repository, live, tmp_path):
    profiled(capsys, repository, "--idle-power-w", "40", "--peak-power-w", "120")
    ((_, _, opened),) = live.opened
    server = read_server_profile(tmp_path / "profiles" / "tiny.json").server
    assert opened["server"] == server
    assert (server.idle_power_watts, server.peak_power_watts) == (40.0, 120.0)
    profiled(capsys, repository)
    assert live.opened[1][2]["server"] is None


def test_watts_of_a_meter_that_gave_way_to_another_are_told_as_its_own(capsys, repository, live):
    live.said = {"power_source": "RAPL", "power_estimated": False}
    told, _ = profiled(capsys, repository)
    assert (told["efficiency"]["estimated"], told["power_source"]) == (False, "RAPL")


@pytest.mark.parametrize("noise", [0.0, 0.6])
def test_more_evaluations_than_configurations_are_explained(capsys, repository, live, noise):
    live.noise = noise
    _, shown = profiled(capsys, repository, "--strategy", "deeprecsys", "--batch-sizes", "256,1024", "--quick")
    evaluations, tried, told = re.search(r"evaluations +(\d+) of (\d+) configurations(.*), 0 answered", shown).groups()
    assert (int(evaluations), int(tried)) == (len(live.asked), len(set(live.asked)))
    repeated = len(live.asked) - len(set(live.asked))
    assert (repeated > 0) == (noise > 0)
    assert told == (f" ({repeated} repeated)" if noise else "")


@pytest.mark.usefixtures("live")
def test_a_power_budget_bounds_what_wins(capsys, repository):
    told, shown = profiled(capsys, repository, "--power-budget-w", "22")
    assert told["efficiency"]["power_watts"] <= 22
    assert told["power_budget_watts"] == read_server_profile(Path("profiles/tiny.json")).power_budget_watts == 22
    assert "22 W, estimated from CPU utilization; 22 W at most were asked for" in shown
    told, shown = profiled(capsys, repository)
    assert told["power_budget_watts"] is read_server_profile(Path("profiles/tiny.json")).power_budget_watts is None
    assert "at most were asked for" not in shown
    code, out, _ = run(capsys, repository, "--power-budget-w", "5")
    assert code == 3
    assert "No configuration keeps p99 within 50 ms with 5 W. The closest one, " in out
    assert "at 21 W (estimated)." in flat(out)


def test_what_else_to_know_of_the_throughput_is_told(capsys, repository, live):
    assert profiled(capsys, repository)[0]["remarks"] == []
    live.late = None
    told, shown = profiled(capsys, repository)
    assert told["remarks"] == ["1000 is a round number"]
    assert "1000 is a round number" in shown


def test_measurements_of_the_best_that_reached_nothing_are_told(capsys, repository, live):
    live.noise, live.first_qps = 0.06, {BEST: [0.0]}
    told, shown = profiled(capsys, repository, "--quick")
    assert told["efficiency"]["qps"] == pytest.approx(970.0)
    assert told["closest"]["runs_of_nothing"] == 1
    words = "The best reached nothing in 1 of its measurements: the machine stalled"
    assert told["remarks"][0].startswith(words)
    assert words in flat(shown)
    assert re.search(r"970 \(but 0 in 1 of its measurements\) queries/s", flat(shown))
    kept = read_server_profile(Path("profiles/tiny.json")).search
    assert kept.reached.runs_of_nothing == 1
    live.first_qps.clear()
    assert not profiled(capsys, repository, "--quick", "--fresh")[0]["remarks"]


@pytest.mark.usefixtures("live")
def test_a_busy_machine_is_told(capsys, repository, monkeypatch):
    quiet, shown = profiled(capsys, repository)
    assert quiet["busy_share"] == 0.01
    assert "busy" not in shown
    busy = BusyMachine(0.37, 0.0, (BusyProcess("python", 123, 0.3),))
    monkeypatch.setattr("hebe.profiling.search.busy_machine", lambda **_: busy)
    told, shown = profiled(capsys, repository)
    assert told["busy_share"] == 0.37
    assert shown.count("This machine is busy: 37% of its cores are taken, most by python (pid 123).") == 2


@pytest.mark.parametrize(
    ("disturbances", "told_as", "words"),
    [
        ([RunDisturbance(0.25, 64, 1.0)], {"denied_share": 0.25}, "machine gave 25% of the cores' time to others. It"),
        (
            [RunDisturbance(0.0, 64, 1.0), RunDisturbance(0.0, 64, 2.5)],
            {"slowest_share": 0.4},
            "did the same work 2.5 times as fast at one time as",
        ),
        ([RunDisturbance(0.03125, 64, 0.9)], {"denied_share": 0.03125}, "The path of the search"),
    ],
)
def test_a_host_that_has_others_to_serve_is_told(capsys, repository, live, monkeypatch, disturbances, told_as, words):
    endless = itertools.cycle(disturbances)
    monkeypatch.setattr(type(live), "disturbance", property(lambda _: next(endless)))
    told, shown = profiled(capsys, repository)
    assert told_as.items() <= told.items()
    assert words in " ".join(shown.split())
    assert ("of this virtual machine" in shown) == (told["denied_share"] > 0.1)
    assert ("did the same work" in shown) == ("slowest_share" in told_as)


def test_what_disturbed_what_the_journal_answers_is_told_as_well(capsys, repository, live, monkeypatch):
    """The first session was disturbed throughout, the second one has only the winner to measure."""
    live.disturbance = RunDisturbance(0.25, 64, 2.0, repeated=1, waited_s=0.5)
    monkeypatch.setattr("hebe.profiling.search.busy_machine", lambda **_: BusyMachine(0.37, 0.0, ()))
    first, _ = profiled(capsys, repository)
    monkeypatch.setattr("hebe.profiling.search.busy_machine", lambda **_: BusyMachine(0.01, 0.0, ()))
    live.disturbance = RunDisturbance(0.0, 64, 1.0)
    told, shown = profiled(capsys, repository)
    assert told["answered_by_journal"] == told["evaluations"] == first["evaluations"]
    (alone,) = live.disturbances
    assert alone.denied == 0.0
    kept = first["evaluations"] + len(live.points) + len(live.timed)
    assert told["denied_share"] == pytest.approx(0.25 * kept / (kept + 1))
    assert (told["busy_share"], told["slowest_share"], told["repeated"]) == (0.37, 0.5, kept)
    assert told["waited_s"] == 0.5 * kept
    for words in (
        "When some of this was measured, others took 37% of this machine's cores.",
        f"machine gave {told['denied_share']:.0%} of the cores' time to others",
        "did the same work 2.0 times as fast at one time",
    ):
        assert words in " ".join(shown.split())
    assert read_server_profile(Path("profiles/tiny.json")).disturbance == Disturbance(
        told["denied_share"], 0.5, kept, 0.5 * kept, 0.37
    )
    anew, shown = profiled(capsys, repository, "--fresh")
    assert (anew["busy_share"], anew["denied_share"], anew["slowest_share"]) == (0.01, 0.0, 1.0)
    assert "others" not in shown


def test_a_journal_that_does_not_say_what_disturbed_its_runs_answers(capsys, repository, live):
    live.disturbance = RunDisturbance(0.25, 64, 2.0)
    first, _ = profiled(capsys, repository)
    file = Path("profiles/journal") / FILE_NAME
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(line.pop("disturbance")["denied"] == 0.25 for line in lines)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    live.disturbance = RunDisturbance(0.0, 64, 1.0)
    told, _ = profiled(capsys, repository)
    assert (told["answered_by_journal"], told["denied_share"]) == (first["evaluations"], 0.0)


def test_what_disturbed_a_search_that_found_nothing_is_told_as_well(capsys, repository, live):
    live.late, live.disturbance = True, RunDisturbance(0.31, 64, 1.0)
    code, out, _ = run(capsys, repository, "--sla-ms", "1")
    assert code == 3
    assert "machine gave 31% of the cores' time to others" in " ".join(out.split())
    assert "Power of packages cannot be read: no meter" in out


@pytest.mark.parametrize(
    ("worker_qps", "told_as"),
    [(100.0, None), (25.0, "2 ways of the cache reached nothing"), (0.0, "1, 2 workers reached nothing")],
)
def test_what_reached_nothing_of_the_scalability_profile_is_told(capsys, repository, live, worker_qps, told_as):
    live.worker_qps = worker_qps
    told, shown = profiled(capsys, repository)
    words = [f"In the scalability profile {told_as}: the SLA target is out of reach there"] if told_as else []
    assert [remark[: len(words[0])] for remark in told["remarks"]] == words
    assert ("reached nothing" in shown) == (told_as is not None)
    assert all(each in flat(shown) for each in words)


def test_scalability_is_headed_by_the_lane_that_was_scaled():
    beside = Lane(Placement.SPARSE_ON_HOST, 1, 1, 1024, 4, 0), Lane(Placement.MODEL_ON_HOST, 3, 2, 64)
    words = _scaled(SimpleNamespace(configuration=beside, search=SimpleNamespace(tried={})))
    assert words == "model-on-host, workers of 2 cores, batches of 64"


@pytest.mark.parametrize(
    ("reached", "words"),
    [
        (Reached(0.0, 10.0, 40.0), "The best one reached, {best}, takes 40 ms for a large query alone."),
        (Reached(0.0, 10.0, math.inf), "The best one reached, {best}, answers too little for its latency to be told."),
    ],
)
def test_a_target_out_of_reach_is_told_with_what_came_closest(reached, words):
    search = SimpleNamespace(reached=reached, closest=(BEST,))
    made = SimpleNamespace(search=search, subject=SimpleNamespace(sla=SlaTarget(20.0, 99.0)))
    assert out_of_reach(made) == f"No configuration keeps p99 within 20 ms. {words.format(best=CLOSEST)}"


CLOSEST = "model-on-host, 2 workers of 2 cores, batches of 256"


@pytest.mark.parametrize(("quick", "lower"), [(False, "no lower rate is tried"), (True, "--quick tries no lower rate")])
def test_where_only_the_rate_is_too_high_that_is_told(quick, lower):
    search = SimpleNamespace(reached=Reached(0.0, 10.0, 8.0), closest=(BEST,))
    subject = SimpleNamespace(sla=SlaTarget(20.0, 99.0))
    assert out_of_reach(SimpleNamespace(search=search, subject=subject, quick=quick, lowest_qps=2.5)) == (
        f"No configuration keeps p99 within 20 ms at 2.5 queries/s or more, and {lower}. "
        f"The best one reached, {CLOSEST}, takes 8 ms for a large query alone."
    )


def test_with_quick_it_is_told_how_to_try_lower_rates(capsys, repository, live):
    live.late = True
    code, _, err = run(capsys, repository, "--sla-ms", "1000", "--quick", "--json")
    assert code == 3
    assert (
        "No configuration keeps p99 within 1,000 ms at 7.1 queries/s or more, and --quick tries no lower rate." in err
    )


@pytest.mark.usefixtures("live")
def test_a_step_that_tried_one_in_vain_shows_it_and_all_that_was_tried_is_told(capsys, repository):
    told, shown = profiled(capsys, repository, "--strategy", "deeprecsys", "--batch-sizes", "16,64,256,1024")
    rows = [" ".join(line.split()) for line in shown.splitlines() if re.match(r" +1 +model-on-host", line)]
    assert rows[-2:] == ["1 model-on-host 4 x 1 256 250 ~24", "1 model-on-host, no better 4 x 1 1,024 166.7 ~24"]
    assert "none is better" not in shown
    assert [each["configuration"]["batch_size"] for each in told["path"]] == [16, 64, 256]
    assert [(each["configuration"]["batch_size"], each["qps"]) for each in told["tried"]] == [
        (16, 125.0), (64, pytest.approx(1000 / 6)), (256, 250.0), (1024, pytest.approx(1000 / 6)),
    ]  # fmt: skip


@pytest.mark.usefixtures("live")
def test_of_a_search_without_a_path_the_best_are_shown_first(capsys, repository):
    _, shown = profiled(capsys, repository, "--strategy", "exhaustive", "--placement", "model-on-host")
    rows = [line.split() for line in shown.splitlines() if line.lstrip().startswith("model-on-host ")]
    rates = [float(row[-2].replace(",", "")) for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert (rates[0], len(rates)) == (1000.0, 10)
