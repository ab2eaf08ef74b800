"""Hebe from outside: its command run in this process, and classes by their name wherever they lie.

`class_named` is the one place that looks into modules. It reads the sources of Hebe's packages for the class, so that a
move of the module changes nothing.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGES = ("hebe", "hebe_lab")
"""Import packages of the distribution; one that is not there is passed over."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The JSON objects that it printed, a line each."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]


def hebe(*arguments: object) -> Ended:
    """Run `python -m hebe` with these arguments in this process."""
    out, err = io.StringIO(), io.StringIO()
    before, code = sys.argv, 0
    sys.argv = ["hebe", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            runpy.run_module("hebe", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = before
    return Ended(code, out.getvalue(), err.getvalue())


def sources() -> Iterator[tuple[str, Path]]:
    """Name and file of each module of Hebe's packages."""
    for package in PACKAGES:
        spec = find_spec(package)
        for root in spec.submodule_search_locations or () if spec else ():
            for path in sorted(Path(root).rglob("*.py")):
                parts = (package, *path.relative_to(root).with_suffix("").parts)
                yield ".".join(part for part in parts if part != "__init__"), path


@cache
def class_named(name: str) -> Any:
    """The class of this name in Hebe's packages. Raises `LookupError` unless there is exactly one."""
    found = [
        module
        for module, path in sources()
        if re.search(rf"^class {name}\b", text := path.read_text("utf-8"), re.M)
        and any(isinstance(node, ast.ClassDef) and node.name == name for node in ast.parse(text).body)
    ]
    if len(found) != 1:
        raise LookupError(f"class {name} is in {found}: must be in one module")
    return getattr(import_module(found[0]), name)


def without_modules(text: str) -> str:
    """`text` without the paths of Hebe's modules before names."""
    return re.sub(rf"\b(?:{'|'.join(PACKAGES)})(?:\.[a-z_]\w*)+\.(?=[A-Z])", "", text)
