"""What holds for tests of commands."""

import pytest


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Room for lines with the paths of temporary directories in them; a test that looks at folding says otherwise."""
    monkeypatch.setenv("COLUMNS", "160")
