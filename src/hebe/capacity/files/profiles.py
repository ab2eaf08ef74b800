"""Profiles that `hebe profile` wrote, as `hebe plan` and `hebe simulate` read them: files, or a directory of them."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.reading import reading

if TYPE_CHECKING:
    from hebe.profiling.files.server_profile import ServerProfile


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
    from hebe.profiling.files.server_profile import read_server_profile

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


def check_throughputs_compare(path: Path, pairs: Collection[tuple[str, str]]) -> list[str]:
    """Raise `PlanFileError` unless the profiles that `path` holds, if it holds such, are for each model of the same
    files and for one SLA target: throughputs for another one are no throughputs to plan with. Of `pairs`, models and
    server types, alone. Returns what was else unlike when they were made, a sentence for each model.
    """
    if not holds_profiles(path):
        return []
    by_model: dict[str, list[ProfileFile]] = {}
    for one in read_profiles(path):
        if one.pair in pairs:
            by_model.setdefault(one.pair[0], []).append(one)
    remarks = []
    for model, (first, *others) in by_model.items():
        for one in others:
            _check_same(model, first, one)
        for words in (_load_words, _loaded):
            here = words(first)
            unlike = next((one for one in others if words(one) != here), None)
            if unlike is not None:
                remarks.append(
                    f"{model} was not profiled alike on all server types, so that its throughputs may not compare:"
                    f" {first.path.name} with {here}, {unlike.path.name} with {words(unlike)}."
                )
    return remarks


def _check_same(model: str, first: ProfileFile, other: ProfileFile) -> None:
    subjects = first.profile.subject, other.profile.subject
    targets = [f"p{one.sla.percentile:g} within {one.sla.latency_ms:g} ms" for one in subjects]
    files = [f"version {one.version} (files {one.identity[:12]})" for one in subjects]
    for what, (here, there) in (("for unlike SLA targets", targets), ("in unlike versions", files)):
        if here != there:
            raise PlanFileError(
                f"{model} was profiled {what}, whose throughputs do not compare: {first.path} {here}, {other.path}"
                f" {there}: profile one of them again"
            )


def _load_words(one: ProfileFile) -> str:
    """What was sent and how long, without the seed, and without what only an accelerator wants to know."""
    parts = one.profile.subject.load.split(", ")
    return ", ".join(part for part in parts if not part.startswith("seed ") and " bytes of hot rows " not in part)


def _loaded(one: ProfileFile) -> str:
    return f"the model loaded so: {one.profile.subject.loaded}"
