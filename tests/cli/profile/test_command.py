"""`hebe profile` as a user runs it, on a server that only seems to run."""

import errno
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hebe.models.repository.repository import ModelRepository
from hebe.profiling.files.server_profile import check_fits, read_server_profile
from hebe.runtime.loaded_model import LoadOptions
from hebe.spec import SlaTarget
from tests.examples.seeming_server import BEST, LATENCY, SERVER, flat, profiled, run


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
        "0 answered by the journal; there are 119 to try",
        "Service time of a batch on one worker, whole",
        "model-on-host, workers of 2 cores, batches of 256, with so many workers",
        "model-on-host, workers of 2 cores, batches of 256, with so many ways of the last-level cache",
        "Picture: profiles/tiny.svg",
    ):
        assert words in shown
    assert (tmp_path / "profiles" / "tiny.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(("end", "code", "how"), [(SystemExit(143), 143, "Terminated"), (SystemExit(129), 129, "Term")])
def test_what_ends_it_says_what_an_interrupt_does(capsys, repository, live, end, code, how):
    live.fault_at, live.fault = 3, end
    told, out, err = run(capsys, repository)
    assert told == code
    assert out.startswith(how)
    assert ". 3 measurements are in profiles/journal: the same command goes on. Best so far: " in out
    assert "error" not in err


def test_paths_are_told_as_they_are(capsys, repository, live):
    paths = ["--output", "profiles[/b] [draft].json", "--journal", "journal[/b] [draft]"]
    live.fault_at, live.fault = 3, KeyboardInterrupt()
    code, out, _ = run(capsys, repository, *paths)
    assert code == 130
    assert "3 measurements are in journal[/b] [draft]: the same command goes on." in out
    live.fault_at = None
    _, shown = profiled(capsys, repository, *paths)
    assert shown.splitlines()[-2:] == ["Profile: profiles[/b] [draft].json", "Picture: profiles[/b] [draft].svg"]


@pytest.mark.usefixtures("live")
def test_of_some_cores_it_is_told_how_to_serve(capsys, repository, monkeypatch, tmp_path):
    monkeypatch.setattr("hebe.machine.pinning.available_cores", lambda: (0, 1, 2, 3))
    monkeypatch.setattr("hebe.profiling.search.available_cores", lambda: (0, 1, 2, 3))
    _, shown = profiled(capsys, repository, "--cores", "1-2")
    assert "put taskset -c 1-2 in front of hebe serve" in shown
    assert read_server_profile(tmp_path / "profiles" / "tiny.json").cores == (1, 2)
    _, shown = profiled(capsys, repository, "--cores", "0-3", "--replace")
    assert "taskset" not in shown
    assert read_server_profile(tmp_path / "profiles" / "tiny.json").cores is None


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

    monkeypatch.setattr("hebe.cli.profile.results.profile_picture", fail)
    code, out, err = run(capsys, repository, "--json", "--output", "profile.json")
    assert code == 1
    told = json.loads(out.splitlines()[-1])
    assert (told["profile"], told["picture_error"]) == ("profile.json", "profile.svg: no such font")
    assert "Profile: profile.json" in err
    assert "Picture:" not in err
    assert "the picture is not written: profile.svg: no such font" in err
    assert read_server_profile(Path("profile.json")).efficiency.qps > 0


def test_one_evaluation_is_told_as_one(capsys, repository, live):
    live.fault_at, live.fault = 1, KeyboardInterrupt()
    _, out, _ = run(capsys, repository)
    assert "Interrupted. 1 measurement is in profiles/journal: the same command goes on." in out


def test_interrupted_before_anything_was_measured(capsys, repository, live):
    live.fault_at, live.fault = 0, KeyboardInterrupt()
    code, out, _ = run(capsys, repository)
    assert (code, out) == (130, "Interrupted before anything was measured.\n")


def test_an_sla_out_of_reach_has_an_exit_code_of_its_own_and_overwrites_nothing(capsys, repository, live, tmp_path):
    profiled(capsys, repository)
    before = (tmp_path / "profiles" / "tiny.json").read_bytes()
    live.late = True
    code, out, err = run(capsys, repository, "--sla-ms", "1", "--json")
    assert code == 3
    assert "No configuration keeps p99 within 1 ms. The best one reached, " in err
    assert "takes 100 ms for a large query alone." in err
    told = json.loads(out.splitlines()[-1])
    assert (told["found"], told["profile"], told["efficiency"]) == (False, None, None)
    assert told["closest"]["tail_latency_ms"] == 100.0
    assert (tmp_path / "profiles" / "tiny.json").read_bytes() == before


@pytest.mark.usefixtures("live")
def test_baymax_takes_an_accelerator_unless_it_is_told_otherwise(capsys, repository):
    told, _ = profiled(capsys, repository, "--strategy", "baymax", "--batch-sizes", "16")
    assert told["closest"]["configuration"]["placement"] == "hot-sparse-on-accelerator"
    code, _, err = run(capsys, repository, "--strategy", "baymax", "--placement", "model-on-host")
    assert code == 2
    assert "co-locates workers on an accelerator: give" in flat(err)


@pytest.mark.parametrize(
    ("options", "code", "fault"),
    [
        (["--strategy", "best"], 2, "'best': choose guided, hercules, algorithm-1, deeprecsys"),
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
        (["--idle-power-w", "30"], 2, "needs both: what it draws idle, and at full load"),
        (["--peak-power-w", "30"], 2, "needs both"),
        (["--idle-power-w", "-1", "--peak-power-w", "30"], 2, "-1: must be"),
        (["--idle-power-w", "31", "--peak-power-w", "30"], 2, "31: must be at most --peak-power-w"),
        (["--evaluations", "3"], 2, "is for --strategy random"),
        (["--key-trace", "nosuch"], 2, "is for --placement hot-sparse-on-accelerator"),
        (["--accelerator-memory", "5M", "--placement", "sparse-on-host"], 2, "is for --placement hot-sparse-on-accel"),
        (["--key-trace", "nosuch", "--placement", "hot-sparse-on-accelerator"], 1, "nosuch: cannot be read"),
        (["--accelerator", "cpu"], 2, "is for --placement sparse-on-host"),
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
        (["--seed", "-1"], 2, "-1: must be at least 0"),
        (["--sizes", "huge"], 2, "--sizes: query sizes 'huge': must be one of"),
        (["--version", "9"], 1, "model tiny has no version 9"),
        (["--journal", "/dev/null/journal"], 1, "the journal cannot be written: Not a directory"),
    ],
)
def test_wrong_usage_is_told_before_anything_starts(capsys, repository, live, monkeypatch, options, code, fault):
    monkeypatch.setattr("hebe.profiling.search.this_server", lambda cores: replace(SERVER, cores=len(cores or [0] * 4)))
    told, _, err = run(capsys, repository, *options)
    assert told == code
    assert fault in flat(err)
    assert not live.opened


def test_a_gpu_that_is_asked_for_and_not_there_is_told(capsys, repository, live, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = run(capsys, repository, "--placement", "sparse-on-host", "--accelerator", "cuda")
    assert code == 1
    assert re.search("PyTorch .* (is a build for CPUs alone|finds no GPU)", flat(err))
    assert not live.opened


@pytest.mark.usefixtures("live")
def test_a_gpu_that_no_placement_would_use_is_pointed_out(capsys, repository, monkeypatch):
    assert "left idle" not in profiled(capsys, repository)[1]
    monkeypatch.setattr("hebe.profiling.search.device_name", lambda _: "GPU X")
    _, err = profiled(capsys, repository)
    assert "GPU X is left idle: --placement sparse-on-host --placement hot-sparse-on-accelerator" in flat(err)


def test_a_profile_of_another_server_is_replaced_only_where_that_is_asked_for(capsys, repository, live, monkeypatch):
    profiled(capsys, repository)
    written, asked = Path("profiles/tiny.json").read_bytes(), len(live.asked)
    monkeypatch.setattr("hebe.profiling.search.this_server", lambda _: replace(SERVER, name="large"))
    code, out, err = run(capsys, repository, "--json")
    assert code == 1
    assert "profiles/tiny.json holds another profile, of server small-4-cores, not large: write to another" in err
    assert "(--replace)" in json.loads(out)["error"]
    assert (len(live.asked), Path("profiles/tiny.json").read_bytes()) == (asked, written)
    profiled(capsys, repository, "--output", "large.json")
    profiled(capsys, repository, "--replace")
    assert read_server_profile(Path("profiles/tiny.json")).subject.server == "large"
    profiled(capsys, repository)


def test_what_another_machine_wrote_meanwhile_is_not_overwritten(capsys, repository, live):
    def written_meanwhile(_qps):
        Path("profiles").mkdir(exist_ok=True)
        Path("profiles/tiny.json").write_text("mine")
        return ()

    live.remarks = written_meanwhile
    code, out, err = run(capsys, repository)
    assert code == 1
    assert "1,000 queries/s" in out
    assert "What is no profile is not overwritten" in err
    assert Path("profiles/tiny.json").read_text() == "mine"


@pytest.mark.usefixtures("live")
def test_a_picture_of_something_else_is_not_overwritten(capsys, repository):
    Path("profiles").mkdir()
    Path("profiles/tiny.svg").write_text("my drawing")
    code, _, err = run(capsys, repository)
    assert (code, Path("profiles/tiny.svg").read_text()) == (2, "my drawing")
    assert "profiles/tiny.svg is there, and no profiles/tiny.json, whose picture it might be" in flat(err)
    profiled(capsys, repository, "--replace")
    profiled(capsys, repository)
    assert Path("profiles/tiny.svg").read_text().startswith("<svg")


@pytest.mark.usefixtures("live")
def test_a_result_that_cannot_be_printed_is_written(capsys, repository, monkeypatch):
    def full(_console, _blocks):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hebe.cli.profile.command.show", full)
    code, _, err = run(capsys, repository)
    assert (code, "No space left on device" in err) == (1, True)
    assert read_server_profile(Path("profiles/tiny.json")).efficiency.qps == 1000.0


@pytest.mark.usefixtures("live")
def test_a_load_says_its_sizes_however_they_were_written(capsys, repository):
    profiled(capsys, repository, "--sizes", " quantiles:10, 40, 100")
    assert read_server_profile(Path("profiles/tiny.json")).subject.sizes == "quantiles:10, 40, 100"


@pytest.mark.usefixtures("live")
def test_an_unknown_model_is_told(capsys, repository):
    code, _, err = run(capsys, repository, "--model", "large")
    assert code == 1
    assert "large" in err


def test_where_the_profile_cannot_be_written_any_more_the_result_was_shown(capsys, repository, live, tmp_path):
    def taken_meanwhile(_qps):
        (tmp_path / "profiles" / "tiny.json").mkdir(parents=True)
        return ()

    live.remarks = taken_meanwhile
    code, out, err = run(capsys, repository)
    assert code == 1
    assert "1,000 queries/s" in out
    assert "profiles/tiny.json: Is a directory" in err
