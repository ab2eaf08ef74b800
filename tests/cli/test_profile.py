"""`hebe profile` as a user runs it, on a server that only seems to run."""

import json
import re
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import save_file

from hebe.cli.main import main
from hebe.cli.profile_checks import STRATEGIES
from hebe.cli.profile_making import SEARCHES
from hebe.models.architectures import build_dense_net
from hebe.models.ranking_model import initial_rows
from hebe.models.repository import ModelRepository
from hebe.planning.parallelism import Reached
from hebe.profile import LatencyProfile, ScalabilityProfile
from hebe.profiling.error import MeasurementError, ProfilingError
from hebe.profiling.evaluator import ScalabilityPoint
from hebe.profiling.journal import FILE_NAME, open_journal
from hebe.profiling.plain_data import LATER_RUN_FIELDS
from hebe.profiling.server_profile import check_fits, read_server_profile
from hebe.profiling.steady_machine import Disturbance
from hebe.runtime.loaded_model import LoadOptions
from hebe.runtime.processor_meter import BusyMachine, BusyProcess
from hebe.scheduling.events import Stage
from hebe.server_configuration import Lane, Placement
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, ServerSpec, SlaTarget

SERVER = ServerSpec("small-4-cores", 4, 8 << 30)
LATENCY = LatencyProfile((16, 64), (0.001, 0.002), (0.0, 0.0001))
BEST = Lane(Placement.MODEL_ON_HOST, 2, 2, 256)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    spec = ModelSpec(
        "tiny",
        "dlrm",
        (EmbeddingTableSpec("ads", 20, 4),),
        (FeatureSpec("ad", "ads", 2, Pooling.SUM),),
        dense_dim=2,
        towers={"bottom": (4, 4), "top": (4, 1)},
        sla=SlaTarget(50.0, 99.0),
    )
    tables = {table.name: initial_rows(spec, table.name, 0) for table in spec.tables}
    ModelRepository(root).write(spec, tables, build_dense_net(spec, seed=0).state_dict())
    return root


class Seeming:
    """Two workers of two cores with batches of 256 are best; the more cores, the more power."""

    noise, power_source, power_estimated, disturbance = 0.0, "CPU utilization", True, Disturbance(0.02, 0.95)
    bandwidth_source, traffic = "counted by an abacus", None

    def __init__(self):
        self.asked, self.opened, self.late, self.fault_at, self.fault = [], [], False, None, None
        self.points, self.timed, self.killed_at, self.said = [], [], None, {}

    def __call__(self, configuration):
        if len(self.asked) == self.fault_at:
            raise self.fault
        self.asked.append(configuration)
        here, *_ = configuration
        said = {"power_source": self.power_source, "power_estimated": self.power_estimated, **self.said}
        if self.late:
            return Reached(0.0, 20.0, 400.0 / here.cores, **said)
        far = abs(here.workers - 2) + abs(here.cores_per_worker - 2) + abs(here.batch_size.bit_length() - 9)
        qps = 1000.0 / (1 + far + 5 * here.dense_workers)
        return Reached(qps, 20.0 + here.cores, 10.0, **said, bandwidth_bytes_per_s=self.traffic)

    def remarks(self, found_qps):
        return (f"{found_qps:g} is a round number",) if self.late is None else ()

    def latency_profiles(self, configuration):
        self.asked_latency = configuration
        return {"whole": LATENCY}

    def busy_profiles(self, lane, batch_sizes):
        self.timed.append((lane, batch_sizes))
        stages = (Stage.SPARSE, Stage.DENSE) if lane.dense_workers else (Stage.WHOLE,)
        return dict.fromkeys(stages, LATENCY)

    def scalability_point(self, configuration, cache_ways):
        if len(self.points) == self.killed_at:
            raise KeyboardInterrupt
        self.points.append((configuration[0].workers, cache_ways))
        qps = 100.0 * configuration[0].workers - (0.0 if cache_ways is None else 50.0)
        return ScalabilityPoint(qps, 1e9, estimated=False)

    def scalability(self, configuration, measure):
        by_workers = [(replace(configuration[0], workers=workers),) for workers in (1, 2)]
        alone, whole = (measure(each, None) for each in by_workers)
        part = measure(by_workers[-1], 2)
        return ScalabilityProfile(
            "tiny", (1, 2), (alone.qps, whole.qps), (1e9, 2e9), (2, 11), ((), (part.qps, whole.qps))
        )


@pytest.fixture
def live(monkeypatch, tmp_path):
    seeming = Seeming()

    @contextmanager
    def live_evaluator(directory, model, version, workload, sla, **options):
        stored = ModelRepository(directory).open(model, version)
        seeming.version, seeming.identity = stored.version, stored.identity
        seeming.opened.append((sla, workload, options))
        yield seeming

    module = ModuleType("hebe.profiling.live_evaluation")
    module.live_evaluator = live_evaluator
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("hebe.cli.profile_making.this_server", lambda _cores: SERVER)
    monkeypatch.setattr("hebe.cli.profile_making.busy_machine", lambda **_: BusyMachine(0.01, 0.0, ()))
    monkeypatch.chdir(tmp_path)
    return seeming


def run(capsys, repository, *options):
    """By Algorithm 1 unless the options say otherwise: a prediction takes seconds."""
    strategy = [] if "--strategy" in options else ["--strategy", "hercules"]
    return run_as_typed(capsys, repository, *strategy, *options)


def run_as_typed(capsys, repository, *options):
    with pytest.raises(SystemExit) as exit_:
        main(["profile", str(repository), "--model", "tiny", *map(str, options)])
    captured = capsys.readouterr()
    return exit_.value.code or 0, captured.out, captured.err


def profiled(capsys, repository, *options):
    code, out, err = run(capsys, repository, *options, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1]), err


def test_the_best_configuration_is_written_with_how_it_was_found(capsys, repository, live, tmp_path):
    told, shown = profiled(capsys, repository, "--sla-ms", "20")
    written = read_server_profile(tmp_path / "profiles" / "tiny.json")
    assert written.configuration == (BEST,) == live.asked_latency
    assert written.efficiency.to_dict() == told["efficiency"]
    assert (written.efficiency.qps, written.efficiency.estimated) == (1000.0, True)
    assert written.subject.sla == SlaTarget(20.0, 99.0), "the percentile is the model's own"
    assert written.latency == {"whole": LATENCY}
    assert live.opened[0][2]["load_options"] == LoadOptions()
    assert written.search.evaluations == told["evaluations"] == len(live.asked)
    stored = ModelRepository(repository).open("tiny")
    profile = read_server_profile(Path(told["profile"]))
    check_fits(profile, "tiny", 1, stored.identity, "scripted, rows fp32", SERVER.name)
    assert profile.configuration == (BEST,)
    assert told["path"][-1]["configuration"]["batch_size"] in (64, 256, 1024)
    for words in (
        "The path of the search",
        "none is better",
        "2 x 2",
        "model-on-host, 2 workers of 2 cores, batches of 256",
        "1,000 queries/s with p99 within 20 ms",
        "24 W, estimated from CPU utilization",
        "0 answered by the journal; there are 68 to try",
        "Service time of a batch on one worker, whole",
        "model-on-host, workers of 2 cores, batches of 256, with so many workers",
        "model-on-host, workers of 2 cores, batches of 256, with so many ways of the last-level cache",
        "Picture: profiles/tiny.svg",
    ):
        assert words in shown
    assert (tmp_path / "profiles" / "tiny.svg").read_text().startswith("<svg")


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


def test_watts_are_told_as_what_measured_them_read_them(capsys, repository, live, tmp_path):
    first, _ = profiled(capsys, repository)
    asked = len(live.asked)
    live.power_source, live.power_estimated = "RAPL", False
    told, shown = profiled(capsys, repository)
    assert len(live.asked) == 2 * asked, "watts that were read do not compare with watts that were estimated"
    assert (told["efficiency"]["estimated"], told["power_source"]) == (False, "RAPL")
    assert "24 W, by RAPL" in shown
    live.power_source, live.power_estimated = "CPU utilization", True
    told, _ = profiled(capsys, repository)
    assert len(live.asked) == 2 * asked
    assert told["efficiency"] == first["efficiency"]
    assert (told["efficiency"]["estimated"], told["power_source"]) == (True, "CPU utilization")
    assert read_server_profile(tmp_path / "profiles" / "tiny.json").power_source == "CPU utilization"


def test_watts_of_a_meter_that_gave_way_to_another_are_told_as_its_own(capsys, repository, live):
    live.said = {"power_source": "RAPL", "power_estimated": False}
    told, _ = profiled(capsys, repository)
    assert (told["efficiency"]["estimated"], told["power_source"]) == (False, "RAPL")


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


@pytest.mark.parametrize(("end", "code", "how"), [(SystemExit(143), 143, "Terminated"), (SystemExit(129), 129, "Term")])
def test_what_ends_it_says_what_an_interrupt_does(capsys, repository, live, end, code, how):
    live.fault_at, live.fault = 3, end
    told, out, err = run(capsys, repository)
    assert told == code
    assert out.startswith(how)
    assert ". 3 evaluations are in profiles/journal: the same command goes on. Best so far: " in out
    assert "error" not in err


def test_what_was_measured_afresh_is_gone_on_with_without_that_option(capsys, repository, live):
    live.fault_at, live.fault = 3, KeyboardInterrupt()
    _, out, _ = run(capsys, repository, "--fresh")
    assert "3 evaluations are in profiles/journal: the same command without --fresh goes on." in out


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


@pytest.mark.parametrize("noise", [0.0, 0.6])
def test_more_evaluations_than_configurations_are_explained(capsys, repository, live, noise):
    live.noise = noise
    _, shown = profiled(capsys, repository, "--strategy", "deeprecsys", "--batch-sizes", "256,1024", "--quick")
    evaluations, tried, told = re.search(r"evaluations +(\d+) of (\d+) configurations(.*), 0 answered", shown).groups()
    assert (int(evaluations), int(tried)) == (len(live.asked), len(set(live.asked)))
    repeated = len(live.asked) - len(set(live.asked))
    assert (repeated > 0) == (noise > 0)
    assert told == (f" ({repeated} repeated)" if noise else "")


def test_without_a_terminal_every_evaluation_is_a_line(capsys, repository, live):
    _, shown = profiled(capsys, repository)
    lines = [line for line in shown.splitlines() if line.startswith("evaluation ")]
    assert len(lines) == len(live.asked)
    assert lines[0] == ("evaluation 1: model-on-host, 1 worker of 1 core, batches of 16: 142.9 queries/s")


@pytest.mark.usefixtures("live")
def test_of_some_cores_it_is_told_how_to_serve(capsys, repository, monkeypatch, tmp_path):
    monkeypatch.setattr("hebe.runtime.pinning.available_cores", lambda: (0, 1, 2, 3))
    monkeypatch.setattr("hebe.cli.profile_making.available_cores", lambda: (0, 1, 2, 3))
    _, shown = profiled(capsys, repository, "--cores", "1-2")
    assert "put taskset -c 1-2 in front of hebe serve" in shown
    assert read_server_profile(tmp_path / "profiles" / "tiny.json").cores == (1, 2)
    _, shown = profiled(capsys, repository, "--cores", "0-3")
    assert "taskset" not in shown
    assert read_server_profile(tmp_path / "profiles" / "tiny.json").cores is None


def test_cores_that_lie_otherwise_are_measured_anew(capsys, repository, live, monkeypatch, tmp_path):
    monkeypatch.setattr("hebe.runtime.pinning.available_cores", lambda: (0, 1, 2, 3))
    monkeypatch.setattr("hebe.cli.profile_making.steady_machine", lambda *_: None)  # there may be fewer cores here
    monkeypatch.setattr("hebe.cli.profile_making.core_layout", lambda cores: f"lie {cores[1] - cores[0]} apart")
    first, _ = profiled(capsys, repository, "--cores", "0,1")
    asked = len(live.asked)
    like, _ = profiled(capsys, repository, "--cores", "2,3")
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
    assert "Interrupted. 5 evaluations are in profiles/journal: the same command goes on. Best so far: " in err
    assert json.loads(out.splitlines()[-1]) == {"interrupted": True, "evaluations": 5, "journal": "profiles/journal"}
    assert not (tmp_path / "profile.json").exists()
    live.fault_at = None
    told, _ = profiled(capsys, repository, "--output", "profile.json")
    assert len(live.asked) == asked
    assert told["answered_by_journal"] == 5
    assert {**told, "answered_by_journal": 0} == {**whole, "profile": "profile.json", "picture": "profile.svg"}


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("/proc/nowhere/tiny.json", "nothing can be written to /proc ("),
        ("taken.json", "taken.json (Is a directory)"),
        ("pictured.json", "pictured.svg (Is a directory)"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is_measured(capsys, repository, live, tmp_path, output, told):
    (tmp_path / "taken.json").mkdir()
    (tmp_path / "pictured.svg").mkdir()
    code, _, err = run(capsys, repository, "--output", output)
    assert (code, told in " ".join(err.replace("│", " ").split())) == (2, True)
    assert not live.opened


def test_a_picture_that_fails_does_not_take_the_profile_with_it(capsys, repository, live, monkeypatch):  # noqa: ARG001
    def fail(_made):
        raise ValueError("no such font")

    monkeypatch.setattr("hebe.cli.profile_results.profile_picture", fail)
    code, out, err = run(capsys, repository, "--json", "--output", "profile.json")
    assert code == 1
    told = json.loads(out.splitlines()[-1])
    assert (told["profile"], told["picture_error"]) == ("profile.json", "profile.svg: no such font")
    assert "Profile: profile.json" in err
    assert "Picture:" not in err
    assert "the picture is not written: profile.svg: no such font" in err
    assert read_server_profile(Path("profile.json")).efficiency.qps > 0


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


def test_interrupted_before_anything_was_measured(capsys, repository, live):
    live.fault_at, live.fault = 0, KeyboardInterrupt()
    code, out, _ = run(capsys, repository)
    assert (code, out) == (130, "Interrupted before anything was measured.\n")


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


def test_an_sla_out_of_reach_has_an_exit_code_of_its_own_and_overwrites_nothing(capsys, repository, live, tmp_path):
    profiled(capsys, repository)
    before = (tmp_path / "profiles" / "tiny.json").read_bytes()
    live.late = True
    code, out, err = run(capsys, repository, "--sla-ms", "1", "--json")
    assert code == 3
    assert "No configuration keeps p99 within 1 ms. The best one reached, " in err
    assert "has a p99 of 100 ms under the lightest load." in err
    told = json.loads(out.splitlines()[-1])
    assert (told["found"], told["profile"], told["efficiency"]) == (False, None, None)
    assert told["closest"]["tail_latency_ms"] == 100.0
    assert (tmp_path / "profiles" / "tiny.json").read_bytes() == before


@pytest.mark.usefixtures("live")
def test_a_power_budget_bounds_what_wins(capsys, repository):
    told, _ = profiled(capsys, repository, "--power-budget-w", "22")
    assert told["efficiency"]["power_watts"] <= 22
    code, out, _ = run(capsys, repository, "--power-budget-w", "5")
    assert code == 3
    assert "No configuration keeps p99 within 50 ms with 5 W. The closest one, " in out
    assert "at 21 W." in out


@pytest.mark.usefixtures("live")
@pytest.mark.parametrize(
    ("strategy", "evaluations"), [("deeprecsys", 4), ("exhaustive", 68), ("random", 14), ("hercules", None)]
)
def test_strategies(capsys, repository, strategy, evaluations):
    told, shown = profiled(capsys, repository, "--strategy", strategy)
    assert told["space"] == 68
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


@pytest.mark.usefixtures("live")
def test_baymax_takes_an_accelerator_unless_it_is_told_otherwise(capsys, repository):
    told, _ = profiled(capsys, repository, "--strategy", "baymax", "--batch-sizes", "16")
    assert told["closest"]["configuration"]["placement"] == "hot-sparse-on-accelerator"
    code, _, err = run(capsys, repository, "--strategy", "baymax", "--placement", "model-on-host")
    assert code == 2
    assert "co-locates workers on an accelerator: give" in flat(err)


def flat(words):
    """As one line, without the box that wrong usage comes in."""
    return " ".join(words.replace("│", " ").split())


@pytest.mark.parametrize(
    ("options", "code", "fault"),
    [
        (["--strategy", "best"], 2, "'best': choose guided, hercules, deeprecsys"),
        (["--placement", "moon"], 2, "'moon': choose model-on-host"),
        (["--batch-sizes", "16,x"], 2, "write numbers of items as 16,64,256"),
        (["--batch-sizes", "0"], 2, "write numbers of items"),
        (["--cores", "1-"], 2, "write cores as 0-3,8"),
        (["--cores", "3-1"], 2, "write cores as 0-3,8"),
        (["--cores", "99999"], 2, "99999: this process may use"),
        (["--sla-ms", "0"], 2, "must be a finite number of more than 0"),
        (["--sla-ms", "nan"], 2, "must be a finite number of more than 0"),
        (["--percentile", "100"], 2, "must lie between 0 and 100"),
        (["--power-budget-w", "-3"], 2, "must be a finite number of more than 0"),
        (["--evaluations", "3"], 2, "is for --strategy random"),
        (["--key-trace", "nosuch"], 2, "is for --placement hot-sparse-on-accelerator"),
        (["--accelerator-memory", "5M", "--placement", "sparse-on-host"], 2, "is for --placement hot-sparse-on-accel"),
        (["--key-trace", "nosuch", "--placement", "hot-sparse-on-accelerator"], 1, "nosuch: cannot be read"),
        (["--strategy", "deeprecsys", "--placement", "pipeline-on-host"], 2, "would not try pipeline-on-host"),
        (["--strategy", "baymax", "--placement", "model-on-host"], 2, "co-locates workers on an accelerator"),
        (
            ["--strategy", "baymax", "--placement", "sparse-on-host", "--placement", "pipeline-on-host"],
            2,
            "would not try pipeline-on-host",
        ),
        (["--cores", "0", "--placement", "pipeline-on-host"], 1, "1 cores are too few for pipeline-on-host"),
        (["--batch-sizes", "999999"], 2, "999999: must be at most 8192, the largest query"),
        (["--batch-sizes", "9000", "--sizes", "fixed:8999"], 2, "9000: must be at most 8999, the largest query"),
        (["--output", "profile.txt"], 2, "must end in .json"),
        (["--arrivals", "burst"], 2, "burst repeats every 10 s, but a probe lasts 8 s at most, and only over whole"),
        (["--arrivals", "burst"], 2, "let them repeat faster, as with burst:5:0.2:2 or"),
        (["--sizes", "huge"], 1, "huge"),
        (["--version", "9"], 1, "model tiny has no version 9"),
        (["--journal", "/dev/null/journal"], 1, "the journal cannot be written: Not a directory"),
    ],
)
def test_wrong_usage_is_told_before_anything_starts(capsys, repository, live, monkeypatch, options, code, fault):
    monkeypatch.setattr(
        "hebe.cli.profile_making.this_server", lambda cores: replace(SERVER, cores=len(cores or [0] * 4))
    )
    told, _, err = run(capsys, repository, *options)
    assert told == code
    assert fault in flat(err)
    assert not live.opened


def test_every_strategy_has_a_search():
    assert tuple(SEARCHES) == STRATEGIES


@pytest.mark.usefixtures("live")
def test_an_unknown_model_is_told(capsys, repository):
    code, _, err = run(capsys, repository, "--model", "large")
    assert code == 1
    assert "large" in err


def test_what_else_to_know_of_the_throughput_is_told(capsys, repository, live):
    assert profiled(capsys, repository)[0]["remarks"] == []
    live.late = None
    told, shown = profiled(capsys, repository)
    assert told["remarks"] == ["1000 is a round number"]
    assert "1000 is a round number" in shown


@pytest.mark.usefixtures("live")
def test_a_busy_machine_is_told(capsys, repository, monkeypatch):
    quiet, shown = profiled(capsys, repository)
    assert quiet["busy_share"] == 0.01
    assert "busy" not in shown
    busy = BusyMachine(0.37, 0.0, (BusyProcess("python", 123, 0.3),))
    monkeypatch.setattr("hebe.cli.profile_making.busy_machine", lambda **_: busy)
    told, shown = profiled(capsys, repository)
    assert told["busy_share"] == 0.37
    assert shown.count("This machine is busy: 37% of its cores are taken, most by python (pid 123).") == 2


@pytest.mark.parametrize(
    ("disturbance", "told_as", "words"),
    [
        (Disturbance(denied=0.31), {"denied_share": 0.31}, "machine gave 31% of the cores' time to others. It may"),
        (Disturbance(slowest_share=0.4), {"slowest_share": 0.4}, "did the same work 2.5 times as fast at one time as"),
        (Disturbance(0.02, 0.9, 3, 45.0), {"repeated": 3, "waited_s": 45.0}, "The path of the search"),
    ],
)
def test_a_host_that_has_others_to_serve_is_told(capsys, repository, live, disturbance, told_as, words):
    live.disturbance = disturbance
    told, shown = profiled(capsys, repository)
    assert told_as.items() <= told.items()
    assert words in " ".join(shown.split())
    assert ("of this virtual machine" in shown, "did the same work" in shown) == (
        "denied_share" in told_as, "slowest_share" in told_as,
    )  # fmt: skip


@pytest.mark.usefixtures("live")
@pytest.mark.parametrize(
    ("options", "patience_s"), [((), 300.0), (("--quick",), 0.0), (("--quick", "--patience-s", 20), 20.0)]
)
def test_how_long_it_waits_for_a_machine_that_others_disturb(capsys, repository, monkeypatch, options, patience_s):
    asked = []
    monkeypatch.setattr("hebe.cli.profile_making.steady_machine", lambda *machine: asked.append(machine))
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


def test_where_the_profile_cannot_be_written_any_more_the_result_was_shown(capsys, repository, live, tmp_path):
    def taken_meanwhile(_qps):
        (tmp_path / "profiles" / "tiny.json").mkdir(parents=True)
        return ()

    live.remarks = taken_meanwhile
    code, out, err = run(capsys, repository)
    assert code == 1
    assert "1,000 queries/s" in out
    assert "profiles/tiny.json: Is a directory" in err
