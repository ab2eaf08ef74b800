"""What holds for tests of commands."""

import json

import pytest

from hebe.cli.main import main


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
