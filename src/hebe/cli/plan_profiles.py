"""Profiles that `hebe profile` wrote, as `hebe plan` and `hebe simulate` read them: files, or a directory of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hebe.cli.plan_files import PlanFileError, reading

if TYPE_CHECKING:
    from hebe.profiling.server_profile import ServerProfile


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """A profile, and the file that it is from."""

    path: Path
    profile: ServerProfile

    @property
    def pair(self) -> tuple[str, str]:
        """The model, and the type of the server."""
        return self.profile.subject.model, self.profile.server.name


def holds_profiles(path: Path) -> bool:
    """Whether it is a directory, or a JSON file that says of which kind it is, as no other file to plan from does."""
    if path.is_dir():
        return True
    if path.suffix.lower() != ".json":
        return False
    with reading(path):
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    return isinstance(content, dict) and "kind" in content


def read_profiles(path: Path) -> list[ProfileFile]:
    """The profile in a file, or those in the `*.json` of a directory, at least one, none twice."""
    from hebe.profile import ProfileError
    from hebe.profiling.server_profile import read_server_profile

    found: dict[tuple[str, str], ProfileFile] = {}
    for each in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        try:
            one = ProfileFile(each, read_server_profile(each))
        except ProfileError as fault:
            raise PlanFileError(str(fault)) from None
        if (before := found.get(one.pair)) is not None:
            raise PlanFileError(f"{each}: {' on '.join(one.pair)} is given twice, before in {before.path}")
        found[one.pair] = one
    if not found:
        raise PlanFileError(f"{path}: holds no profile (*.json) of hebe profile")
    return list(found.values())
