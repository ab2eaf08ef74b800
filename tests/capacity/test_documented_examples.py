"""The documentation's examples of Python run, as a notebook runs them and as scripts without a main guard."""

import contextlib
import io
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.examples.pool_files import FROM_HERE
from tests.places import ROOT

EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
PRINTED = {
    "planning.md": [
        r"\{'gpu': \d+, 'cpu': \d+\} \d+ queries/s at most",
        r"\[3, 4, 5\] servers, by interval",
        r"8 servers: \[\['filter', 'ranker'\], \['filter'\]\]",
        r"r5n\.large \d+ queries/s, estimated\nc5n\.2xlarge \d+ queries/s, estimated",
    ],
    "simulation.md": [
        r"p99 \d+\.\d ms, \d+\.\d% in time",
        r"met in all intervals",
        r"\{'filter': '\d\.\d ms', 'ranker': '\d+\.\d ms'\}",
        r"1,?\d\d\d queries/s",
    ],
}
"""What each example prints."""


@pytest.fixture
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in runpy.run_path(str(ROOT / "scripts" / "example_files.py"))["example_files"]().items():
        Path(name).write_text(content)


def examples(page, count):
    """The first of a page as one script, which has no guard."""
    script = "".join(EXAMPLE.findall((ROOT / "docs" / page).read_text())[:count])
    assert "__main__" not in script
    return script


def run_as(way, script):
    """What a script prints, as a main script or in a thread, which is what a notebook's kernel may do."""
    if way == "a thread":
        printed = io.StringIO()
        failed = []

        def execute():
            try:
                exec(compile(script, "<cell>", "exec"), {"__name__": "__main__"})
            except BaseException as error:
                failed.append(error)

        with contextlib.redirect_stdout(printed):
            thread = threading.Thread(target=execute)
            thread.start()
            thread.join()
        assert not failed
        return printed.getvalue()
    Path("plain.py").write_text(script)
    answer = subprocess.run(
        [sys.executable, "-" if way == "stdin" else "plain.py"],
        env=FROM_HERE, input=script if way == "stdin" else "", capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.usefixtures("in_a_folder")
@pytest.mark.parametrize(
    ("page", "way"),
    [
        ("planning.md", "a script"),
        ("simulation.md", "a script"),
        ("simulation.md", "stdin"),
        ("simulation.md", "a thread"),
    ],
)
def test_the_examples_of_a_page_run_and_print(page, way):
    count = len(PRINTED[page]) if way == "a script" else 1  # the first of simulation.md runs on all cores
    assert re.fullmatch("\n".join(PRINTED[page][:count]) + "\n", run_as(way, examples(page, count)))


def test_every_example_is_run():
    for page, printed in PRINTED.items():
        assert len(EXAMPLE.findall((ROOT / "docs" / page).read_text())) == len(printed)


def test_the_library_needs_neither_torch_nor_the_command_line(tmp_path):
    script = """
import sys
import hebe
assert "numpy" not in sys.modules
import hebe.capacity
assert "numpy" not in sys.modules
for name in hebe.capacity.__all__:
    assert callable(getattr(hebe.capacity, name))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "numba", "typer", "click"}))
"""
    answer = subprocess.run(
        [sys.executable, "-c", script], env=FROM_HERE, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "[]\n"


def test_no_message_names_an_option():
    for path in (ROOT / "src" / "hebe" / "capacity").rglob("*.py"):
        assert not re.search(r"--[a-z]", path.read_text()), path


def test_a_name_that_the_package_has_not():
    with pytest.raises(ImportError):
        from hebe.capacity import plan_nothing  # noqa: F401
