"""What the Makefile asks of the machine, without doing it."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def planned(target):
    """The commands of a target, and of a set-up that is due."""
    plan = ["make", "--dry-run", "--what-if=scripts/setup.sh", target]
    made = subprocess.run(
        plan, cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ | {"MAKEFLAGS": ""}
    )
    assert "scripts/setup.sh .venv" in made.stdout
    return made.stdout


@pytest.mark.parametrize(("target", "installs"), [("setup", False), ("demo", False), ("bench", False), ("test", True)])
def test_only_tests_have_system_packages_installed(target, installs):
    assert ("scripts/system_packages.sh redis-server:redis-server" in planned(target)) is installs
    assert "apt-get update" not in (ROOT / "scripts" / "setup.sh").read_text()


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
