"""What holds for tests of commands."""

import json
import sys
from contextlib import contextmanager
from types import ModuleType

import pytest

from hebe.cli.main import main
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SlaTarget


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Room for lines with the paths of temporary directories in them; a test that looks at folding says otherwise."""
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def hebe(capsys):
    """Runs `hebe model`; returns (exit status, stdout, stderr)."""

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main(["model", *map(str, arguments)])
        captured = capsys.readouterr()
        return exit_.value.code or 0, captured.out, " ".join(captured.err.split())

    return run


@pytest.fixture
def answer(hebe):
    """Runs `hebe model` with --json; returns the object of its last line."""

    def run(*arguments):
        code, out, err = hebe(*arguments, "--json")
        assert code == 0, err
        assert out.count("\n") == 1, "with --json, stdout is one line"
        return json.loads(out)

    return run


@pytest.fixture
def models(tmp_path):
    return tmp_path / "models"


@pytest.fixture
def unpictured(monkeypatch):
    """`hebe profile` writes an empty picture: half of the time of a search that only seems to measure."""
    monkeypatch.setattr("hebe.cli.profile.results.profile_picture", lambda _made: "<svg/>")


@pytest.fixture
def few_budgets(monkeypatch):
    """`hebe plan pool` draws its frontier of three budgets, not of twenty: each takes some integer programs."""
    monkeypatch.setattr("hebe.capacity.pool_planner._FRONTIER_BUDGETS", 3)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Of one model, `tiny`."""
    from hebe.models.architectures.build import build_dense_net  # torch, which most tests of commands can do without
    from hebe.models.architectures.ranking_model import initial_rows
    from hebe.models.repository.repository import ModelRepository

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


@pytest.fixture
def live(monkeypatch, tmp_path):
    """The server that `hebe profile` finds running, in a directory of its own."""
    from hebe.machine.meters.processor import BusyMachine
    from hebe.models.repository.repository import ModelRepository
    from tests.examples.seeming_server import SERVER, Seeming

    seeming = Seeming()

    @contextmanager
    def live_evaluator(directory, model, version, workload, sla, **options):
        stored = ModelRepository(directory).open(model, version)
        seeming.version, seeming.identity = stored.version, stored.identity
        seeming.opened.append((sla, workload, options))
        seeming.disturbances = []
        yield seeming

    module = ModuleType("hebe.profiling.live_evaluation")
    module.live_evaluator = live_evaluator
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("hebe.profiling.search.this_server", lambda _cores: SERVER)
    monkeypatch.setattr("hebe.profiling.search.busy_machine", lambda **_: BusyMachine(0.01, 0.0, ()))
    monkeypatch.setattr(
        "hebe.machine.meters.processor._NUMBERS", 1
    )  # made for each search, and not summed by this server
    monkeypatch.chdir(tmp_path)
    return seeming
