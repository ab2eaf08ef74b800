"""What the peers need, installed under one folder and nowhere else (but for Debian packages). Idempotent.

TORCH_INDEX in the environment names a package index for torch alone, as for `make setup`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

SHOWN_LINES = 12
"""Lines of a failed installer's output that an `InstallError` quotes."""


class InstallError(RuntimeError):
    """Something that a peer needs could not be installed; the message says what, and what to do."""


class Installation:
    """The folder that holds the peers' virtualenvs and unpacked wheels, each stamped with what is in it."""

    def __init__(self, root: Path, say: Callable[[str], None]) -> None:
        self.root = root
        self._say = say

    def virtualenv(self, name: str, python: str, requirements: Sequence[str]) -> Path:
        """The `bin` folder of virtualenv `name` holding `requirements`; made or renewed where they differ."""
        home = self.root / "venvs" / name
        if self._is_stamped(home, [python, *requirements]):
            return home / "bin"
        started_s = time.monotonic()
        self._say(f"installing {name}: {' '.join(requirements)} (about 1 GB with torch, some minutes)")
        shutil.rmtree(home, ignore_errors=True)
        home.parent.mkdir(parents=True, exist_ok=True)
        _run(name, [python, "-m", "venv", str(home)])
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        if index := os.environ.get("TORCH_INDEX"):
            torch = [requirement for requirement in requirements if requirement.startswith("torch==")]
            _run(name, [*pip, "--index-url", index, *torch])
        _run(name, [*pip, *requirements])
        self._stamp(home, [python, *requirements])
        self._say(f"installed {name} in {time.monotonic() - started_s:.0f} s")
        return home / "bin"

    def unpacked_wheels(self, name: str, requirements: Sequence[str]) -> Path:
        """A folder holding the files of `requirements`, downloaded without dependencies and only unzipped."""
        home = self.root / name
        if self._is_stamped(home, requirements):
            return home
        self._say(f"downloading {name}: {' '.join(requirements)}")
        shutil.rmtree(home, ignore_errors=True)
        wheels = home / "wheels"
        wheels.mkdir(parents=True)
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        _run(name, [*download, "--dest", str(wheels), *requirements])
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(home)
        shutil.rmtree(wheels)
        self._stamp(home, requirements)
        return home

    def debian_program(self, program: str, package: str) -> str:
        """The path of `program`; installs Debian's `package` where it is missing and we are root."""
        if shutil.which(program) is None:
            self._install_debian(package)
        path = shutil.which(program)
        if path is None:
            raise InstallError(f"{program} is not on the PATH; install it: apt-get install {package}")
        return path

    def debian_library(self, library: str, package: str) -> None:
        """See that the dynamic linker finds `library`, installing Debian's `package` as `debian_program` does."""
        if not _linker_finds(library):
            self._install_debian(package)
        if not _linker_finds(library):
            raise InstallError(f"{library} is missing; install it: apt-get install {package}")

    def _install_debian(self, package: str) -> None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise InstallError(f"{package} is missing and only root may install it: apt-get install {package}")
        self._say(f"installing Debian package {package}")
        command = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", package]
        _run(package, command, {**os.environ, "DEBIAN_FRONTEND": "noninteractive"})

    def _is_stamped(self, home: Path, contents: Sequence[str]) -> bool:
        stamp = home / "installed"
        return stamp.is_file() and stamp.read_text() == _digest(contents)

    def _stamp(self, home: Path, contents: Sequence[str]) -> None:
        (home / "installed").write_text(_digest(contents))


def base_python() -> str:
    """The interpreter that the running virtualenv was made from."""
    return str(getattr(sys, "_base_executable", sys.executable))


def _digest(contents: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(contents).encode()).hexdigest() + "\n"


def _linker_finds(library: str) -> bool:
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    return library in known


def _run(what: str, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    except OSError as fault:
        raise InstallError(f"{what}: {fault}") from None
    if done.returncode != 0:
        shown = "\n".join(done.stdout.strip().splitlines()[-SHOWN_LINES:])
        raise InstallError(f"{what}: `{' '.join(command)}` failed ({done.returncode}):\n{shown}")
