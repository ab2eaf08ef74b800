"""The examples of docs/planning.md, docs/simulation.md and README.md's planning: their files are written, their
commands run in order.
"""

import re
import runpy
import shlex
import tomllib

import pytest

from hebe.capacity.files.pool_plan import read_pool_plan
from hebe.cli.main import main
from tests.places import DOCS

SCRIPT = DOCS.parent / "scripts/example_files.py"
_SHELL = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)
_README = re.compile(r"^    \.venv/bin/(hebe (?:plan|simulate|estimate) .*\n)", re.M)
_TOML = re.compile(r"^```toml\n(kind = .*?)^```", re.M | re.S)


@pytest.mark.usefixtures("few_budgets")
def test_every_example_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planning, simulation = ((DOCS / name).read_text() for name in ("planning.md", "simulation.md"))
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert len(list(tmp_path.iterdir())) >= 10
    readme = _README.findall((DOCS.parent / "README.md").read_text())
    assert len(readme) == 6
    assert readme[0] == _SHELL.search(planning)[1], "the README's figure would be another than the page's"
    commands = "".join(_SHELL.findall(planning) + _SHELL.findall(simulation) + readme).splitlines()
    assert sum(command.startswith("hebe plan") for command in commands) == 4 + 3
    assert sum(command.startswith("hebe simulate") for command in commands) >= 4 + 2
    for command in commands:
        words = shlex.split(command, comments=True)
        assert words[0] == "hebe"
        shown = command.startswith("hebe plan pool times.csv") and not (tmp_path / "pool.toml").exists()
        if ("simulate" in words or "pool" in words) and not shown:
            words += ["--queries", "250", "--seeds", "2"]  # the last word counts; what is shown would take a minute
        with pytest.raises(SystemExit) as exit_:
            main(words[1:])
        assert not exit_.value.code, f"{command}\n{capsys.readouterr().err}"
        capsys.readouterr()
        if shown:
            written, on_the_page = (
                tomllib.loads(text)["predicted"]
                for text in ((tmp_path / "pool.toml").read_text(), _TOML.search(planning)[1])
            )
            assert written.pop("utilisation") == pytest.approx(on_the_page.pop("utilisation"), rel=1e-3)
            assert written == pytest.approx(on_the_page, rel=1e-3)
    for plan in ("pool.toml", "day.toml", "shared.toml", "quick.toml"):
        written = tomllib.loads((tmp_path / plan).read_text())
        assert {"kind", "version", "written_by", "predicted"} <= set(written)


def test_the_script_overwrites_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loads.csv").write_text("mine\n")
    with pytest.raises(SystemExit, match=r"loads.csv is there already"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert [path.name for path in tmp_path.iterdir()] == ["loads.csv"]


def test_the_plan_shown_can_be_read(tmp_path):
    path = tmp_path / "pool.toml"
    path.write_text(_TOML.search((DOCS / "planning.md").read_text())[1])
    plan = read_pool_plan(path)
    assert plan.counts == {"gpu": 0, "cpu": 10}
    assert plan.policy.kind == "splitting"
    assert plan.service_times == (tmp_path / "times.csv",)
