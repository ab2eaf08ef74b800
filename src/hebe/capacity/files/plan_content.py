"""What all plan files have in common, whichever command wrote them: the kind, and the files that they name."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.reading import reading

_COMMANDS = {"pool": "hebe plan pool", "provisioning": "hebe plan provision", "colocation": "hebe plan colocate"}
"""What writes plans, by their kind."""


def plan_kind(path: Path) -> str:
    """`pool`, `provisioning` or `colocation`. Raises `PlanFileError` for a file that is no such plan."""
    kind = _content(path).get("kind")
    if not isinstance(kind, str) or kind not in _COMMANDS:
        known = ", ".join(f"{name!r} ({command})" for name, command in _COMMANDS.items())
        raise PlanFileError(f"{path}: kind is {kind!r}: must be a plan to simulate: {known}")
    return kind


def read_plan(path: Path, kind: str, version: int) -> dict[str, Any]:
    """A plan file's content. Raises `PlanFileError` if it is of another kind or version."""
    content = _content(path)
    if (content.get("kind"), content.get("version")) != (kind, version):
        raise PlanFileError(
            f"{path}: kind {content.get('kind')!r}, version {content.get('version')!r}: must be kind {kind!r}, version"
            f" {version}, as {_COMMANDS[kind]} writes it"
        )
    return content


def file_made_from(path: Path, content: Mapping[str, Any], field: str) -> Path | None:
    """The file that the plan at `path` names in `[made_from]` under `field`; None where it does not say."""
    made_from = content.get("made_from", {})
    if not isinstance(made_from, dict):
        raise PlanFileError(f"{path}: made_from is {made_from!r}: must be a table of files")
    name = made_from.get(field)
    if name is None:
        return None
    if not isinstance(name, str) or not name:
        raise PlanFileError(f"{path}: made_from: {field} is {name!r}: must be the name of a file")
    return named_in_plan(name, path)


def relative_to_plan(file: Path, plan: Path) -> str:
    """How a plan file at `plan` names another file."""
    return Path(os.path.relpath(file.resolve(), plan.resolve().parent)).as_posix()


def named_in_plan(name: str, plan: Path) -> Path:
    """The file that a plan file at `plan` names, which may be a link to where the plan was written."""
    return (plan.resolve() if plan.is_symlink() else plan).parent / name


def _content(path: Path) -> dict[str, Any]:
    with reading(path):
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
