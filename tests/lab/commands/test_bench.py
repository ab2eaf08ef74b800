import json
import subprocess

import pytest

import hebe_lab.bench.runner
from hebe.cli.main import main
from hebe.load_generator.error import LoadError
from hebe.report.figures import Figure, FigureError, FigureFile

FAULTS = {
    "broken": RuntimeError("the machine is busy"),
    "unloaded": LoadError("no server there"),
    "nameless": FigureError("x is nan"),
    "endless": subprocess.TimeoutExpired("python", 120),
    "wrong": KeyError("rate"),
}


@pytest.fixture
def benchmarks(monkeypatch):
    """Two benchmarks, `fast` and `slow`, that measure nothing; parts of a name in `FAULTS` fail by it."""
    ran = []

    def run_benchmark(name, quick, progress, data=None, only=None):  # noqa: ARG001
        ran.append(name if data is None and only is None else (name, data, only))
        if only in FAULTS:
            raise FAULTS[only]
        return FigureFile(
            name if only is None else f"{name}-{only}",
            "hebe bench",
            "abc",
            {},
            1.0,
            quick,
            (Figure(f"{name}.x", 3, "ms", target="< 2"),),
        )

    monkeypatch.setattr(hebe_lab.bench.runner, "run_benchmark", run_benchmark)
    monkeypatch.setattr(
        hebe_lab.bench.runner, "benchmark_descriptions", lambda: {"fast": "is [fast]", "slow": "is slow"}
    )
    monkeypatch.setattr(
        hebe_lab.bench.runner, "benchmark_parts", lambda name: ("half", "rest") if name == "slow" else ()
    )
    return ran


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["bench", *arguments])
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err


def test_without_a_name_lists_them(capsys, benchmarks):
    code, out, _ = run(capsys)
    assert code == 0
    assert [line.split(None, 1) for line in out.splitlines()] == [["fast", "is [fast]"], ["slow", "is slow"]]
    assert benchmarks == []


def test_a_run_writes_its_figures_and_prints_them(capsys, benchmarks, tmp_path):
    code, out, _ = run(capsys, "fast", "--quick", "--out", str(tmp_path / "f"))
    assert code == 0
    assert "fast.x" in out
    assert "missed" in out
    assert benchmarks == ["fast"]
    assert FigureFile.read(tmp_path / "f" / "fast.json").quick


def test_json_is_the_only_thing_on_stdout(capsys, benchmarks, tmp_path):  # noqa: ARG001
    code, out, err = run(capsys, "fast", "--json", "--out", str(tmp_path))
    assert code == 0
    (file,) = json.loads(out)["files"]
    assert (file["name"], file["figures"][0]["value"], file["quick"]) == ("fast", 3.0, False)
    assert "fast.x" in err


def test_all_runs_each_once(capsys, benchmarks, tmp_path):
    assert run(capsys, "all", "--out", str(tmp_path))[0] == 0
    assert benchmarks == ["fast", ("slow", None, "half"), ("slow", None, "rest")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fast.json", "slow-half.json", "slow-rest.json"]


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("broken", "the machine is busy"),
        ("unloaded", "no server there"),
        ("nameless", "x is nan"),
        ("endless", "TimeoutExpired: Command 'python' timed out after 120 seconds"),
        ("wrong", "KeyError: 'rate'"),
    ],
)
def test_a_part_that_fails_costs_the_others_nothing(capsys, benchmarks, tmp_path, monkeypatch, broken, told):
    monkeypatch.setattr(hebe_lab.bench.runner, "benchmark_parts", lambda _: ("half", broken, "rest"))
    code, out, err = run(capsys, "slow", "--json", "--out", str(tmp_path))
    assert code == 1
    assert f"slow, part {broken}: {told}" in err
    assert [file["name"] for file in json.loads(out)["files"]] == ["slow-half", "slow-rest"]
    assert json.loads(out)["error"] == f"slow, part {broken}: {told}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["slow-half.json", "slow-rest.json"]
    assert len(benchmarks) == 3
    code, _, err = run(capsys, "slow", "--only", broken, "--out", str(tmp_path))
    assert (code, told in err) == (1, True)


def test_what_cannot_be_written_costs_the_others_nothing(capsys, benchmarks, tmp_path):
    (tmp_path / "slow-half.json").mkdir()
    code, out, err = run(capsys, "slow", "--json", "--out", str(tmp_path))
    assert (code, len(benchmarks)) == (1, 2)
    assert "slow-half.json" in err
    told = json.loads(out)
    files = [(file["name"], file["figures"][0]["value"], file["file"]) for file in told["files"]]
    assert files == [("slow-half", 3.0, None), ("slow-rest", 3.0, str(tmp_path / "slow-rest.json"))]
    assert told["error"] == f"the figures of slow-half are in no file: {tmp_path / 'slow-half.json'}: Is a directory"


def test_an_unknown_benchmark_names_the_known_ones(capsys, benchmarks):
    code, _, err = run(capsys, "serv")
    assert code == 2
    assert "serv" in err
    assert "fast, slow, all" in " ".join(err.split())
    assert benchmarks == []


def test_recorded_measurements_are_handed_on_if_they_are_there(capsys, benchmarks, tmp_path):
    assert run(capsys, "fast", "--data", str(tmp_path), "--out", str(tmp_path))[0] == 0
    assert benchmarks == [("fast", tmp_path, None)]
    code, _, err = run(capsys, "fast", "--data", str(tmp_path / "nowhere"))
    assert code == 2
    assert "nowhere" in err


def test_one_part_alone(capsys, benchmarks, tmp_path):
    assert run(capsys, "slow", "--only", "half", "--out", str(tmp_path))[0] == 0
    assert benchmarks == [("slow", None, "half")]


@pytest.mark.parametrize(
    ("name", "told"), [("slow", "its parts: half, rest"), ("fast", "no parts"), ("all", "no parts")]
)
def test_an_unknown_part_names_the_known_ones(capsys, benchmarks, name, told):
    code, _, err = run(capsys, name, "--only", "quarter")
    assert code == 2
    assert told in " ".join(err.replace("│", " ").split())
    assert benchmarks == []
