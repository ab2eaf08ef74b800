"""What the Makefile asks of the machine, without doing it."""

import os
import subprocess

import pytest

from tests.places import ROOT


def planned(*arguments):
    """The commands of a target, and of a set-up that is due."""
    plan = ["make", "--dry-run", "--what-if=scripts/setup.sh", *arguments]
    made = subprocess.run(
        plan, cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ | {"MAKEFLAGS": ""}
    )
    assert "scripts/setup.sh .venv" in made.stdout
    return made.stdout


def test_acceptance_is_the_whole_of_the_scores_and_the_demos_auc():
    plan = planned("acceptance", "DATA=clicks.csv")
    assert "HEBE_ACCEPTANCE=full .venv/bin/python -m pytest -s tests/integration/serving/test_serve_scores.py" in plan
    assert ".venv/bin/hebe demo --data 'clicks.csv'" in plan


@pytest.mark.parametrize(
    ("target", "installs"),
    [("setup", False), ("demo", False), ("bench", False), ("acceptance", False), ("test", True)],
)
def test_only_tests_have_system_packages_installed(target, installs):
    assert ("scripts/system_packages.sh redis-server:redis-server" in planned(target)) is installs
    assert "apt-get update" not in (ROOT / "scripts" / "setup.sh").read_text()


def test_only_setup_compiles_kernels_beforehand():
    assert ".venv/bin/hebe precompile" in planned("setup")
    assert ".venv/bin/hebe precompile" not in planned("demo")


@pytest.mark.parametrize(
    ("target", "needs_test_tools"),
    [("setup", False), ("demo", False), ("bench-peers", False), ("bench", True), ("acceptance", True), ("test", True),
     ("check", True)],
)  # fmt: skip
def test_test_tools_are_installed_for_those_who_need_them(target, needs_test_tools):
    installed = [line.split() for line in planned(target).splitlines() if "scripts/setup.sh" in line]
    extras = [line[line.index(".venv") + 1 :] for line in installed]
    assert extras == ([[], ["test,check"]] if needs_test_tools else [[]])


def test_what_is_installed_already_is_not_installed_again(tmp_path):
    """`make setup`, then `make check` twice, then a change of what is required."""
    ran = tmp_path / "ran"
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "scripts/setup.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text() if name == "Makefile" else "")
        os.utime(tmp_path / name, (1e9, 1e9))
    (tmp_path / "scripts" / "setup.sh").write_text(f'echo "installed $2" >> {ran}; mkdir -p "$1"\n')
    (tmp_path / "scripts" / "setup.sh").chmod(0o755)
    os.utime(tmp_path / "scripts" / "setup.sh", (1e9, 1e9))
    for name in ("hebe", "python", "ruff", "mypy"):
        (tmp_path / ".venv" / "bin" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ".venv" / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / ".venv" / "bin" / name).chmod(0o755)

    def make(target):
        ran.write_text("")
        subprocess.run(
            ["make", target], cwd=tmp_path, capture_output=True, check=True,
            env=os.environ | {"MAKEFLAGS": "", "PYTHON": ""},
        )  # fmt: skip
        return [line.strip() for line in ran.read_text().splitlines()]

    runtime, tools = "installed", "installed test,check"
    assert [make(target) for target in ("setup", "setup", "check", "check", "demo")] == [[runtime], [], [tools], [], []]
    os.utime(tmp_path / "pyproject.toml")
    assert [make(target) for target in ("demo", "check", "demo")] == [[runtime], [tools], []]


def test_what_an_environment_is_to_be_made_of_is_heard_where_there_is_one(tmp_path):
    """`make setup PYTHON=...` would else say Ready, and leave another Python there."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "scripts/setup.sh", ".venv/.ready"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text() if name == "Makefile" else "")
    for asked, runs in (([], False), (["PYTHON=python3"], True), (["TORCH_INDEX=https://torch"], True)):
        made = subprocess.run(
            ["make", "--dry-run", "setup", *asked], cwd=tmp_path, capture_output=True, text=True, check=True,
            env=os.environ | {"MAKEFLAGS": "", "PYTHON": "python3"},
        )  # fmt: skip
        assert ("scripts/setup.sh" in made.stdout) is runs


def set_up(tmp_path, *extras, has_torch=True, **variables):
    """`scripts/setup.sh` of an environment of Python 3.11, with torch or without, whose pip says what it is asked."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(
        f"""#!/bin/bash
case "$*" in
    *metadata*) exit {int(not has_torch)} ;;
    *sys.version_info\\[:2\\]*) echo 3.11 ;;
    *pip\\ install*) echo "$@" ;;
esac
"""
    )
    python.chmod(0o755)
    command = ["/bin/bash", ROOT / "scripts" / "setup.sh", tmp_path / "venv", *extras]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)


def test_an_environment_of_another_python_than_is_asked_for_is_told(tmp_path):
    other = tmp_path / "other"
    other.write_text('#!/bin/bash\ncase "$*" in *\\[:2\\]*) echo 3.13 ;; esac\n')
    other.chmod(0o755)
    done = set_up(tmp_path, PYTHON=str(other))
    assert done.returncode == 1
    assert done.stderr.endswith(f"is of Python 3.11, {other} is 3.13; make clean takes it away\n")


def test_of_torchs_own_index_nothing_but_torch_is_asked(tmp_path):
    """It need not have what torch needs, at the versions that are wanted."""
    done = set_up(tmp_path, has_torch=False, TORCH_INDEX="https://torch")
    torch, rest = (line for line in done.stdout.splitlines() if "pip" in line)
    assert torch.endswith("--index-url https://torch --no-deps torch")
    assert "--index-url" not in rest
    there = set_up(tmp_path, TORCH_INDEX="https://torch").stdout
    assert "--index-url" not in there
    assert "torch is there already and stays; make clean first" in there


def test_extras_are_installed_where_they_are_named(tmp_path):
    assert set_up(tmp_path).stdout.splitlines()[-1].endswith("--editable .")
    assert set_up(tmp_path, "test,check").stdout.splitlines()[-1].endswith("--editable .[test,check]")


def system_packages(path, *entries):
    """Run with the commands in `path` alone."""
    command = ["/bin/bash", ROOT / "scripts" / "system_packages.sh", *entries]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": str(path)})


def test_packages_are_installed_for_the_commands_that_are_missing(tmp_path):
    for name, does in (("there", ""), ("id", "echo 0"), ("apt-get", f'echo "$@" >> {tmp_path}/installed')):
        (tmp_path / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / name).chmod(0o755)
    assert system_packages(tmp_path, "there:one").stdout == ""
    assert not (tmp_path / "installed").exists()
    done = system_packages(tmp_path, "there:one", "missing:two")
    assert (done.returncode, done.stdout) == (0, "Installing system packages: two\n")
    assert (tmp_path / "installed").read_text() == "update -qq\ninstall -y -qq two\n"


def test_packages_that_cannot_be_installed_are_named(tmp_path):
    for name, does in (("id", "echo 1000"), ("sudo", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / name).chmod(0o755)
    done = system_packages(tmp_path, "missing:two")
    assert done.returncode == 1
    assert "install these by hand, then run make test again: two" in done.stderr
