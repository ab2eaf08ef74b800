"""From profile files to how a server runs its models, and what serving measures back into the files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote

from hebe.machine.gpu import GpuMissing
from hebe.machine.pinning import available_cores
from hebe.models.repository.repository import ModelRepository, RepositoryError
from hebe.profile import EfficiencyTuple, ProfileError
from hebe.profiling.error import ProfilingError
from hebe.profiling.files.server_profile import (
    ServerProfile,
    check_fits,
    core_list,
    read_server_profile,
    write_server_profile,
)
from hebe.serving.hosting.served_configuration import ServedConfiguration
from hebe.spec import ModelSpec


def configurations_to_serve(
    directory: Path, paths: Sequence[Path], loaded: str, server: str, layout: str = ""
) -> dict[str, ServedConfiguration]:
    """How to run the models that the profiles in these files are of, by name.

    Raises `ProfileError`, which names the file and says what to do, unless each is of the newest version of another
    model of the repository at `directory`, `loaded` in that way (`LoadOptions.words`), of this kind of `server`
    (`this_server().name`, of all cores that will serve), and of cores that lie to each other in this `layout`
    (`core_layout()`, of the same); and what the repository raises.
    """
    repository = ModelRepository(directory)
    names = repository.names()
    found: dict[str, Path] = {}
    configurations: dict[str, ServedConfiguration] = {}
    for path in paths:
        profile = read_server_profile(path)
        name = profile.subject.model
        if name in found:
            raise ProfileError(f"{path} and {found[name]} are both profiles of {name}: give one of them")
        if name not in names:
            known = ", ".join(names) or "none"
            raise ProfileError(f"{path}: the profile is of {name}, which {directory} does not have; it has: {known}")
        stored = repository.open(name)
        try:
            check_fits(profile, name, stored.version, stored.identity, loaded, server, layout)
        except ProfileError as fault:
            raise ProfileError(
                f"{path}: {fault} ({_profile_command(directory, name)})"
                f"{_on_its_cores(directory, path, profile, server)}, or serve {name} without one"
            ) from None
        found[name], configurations[name] = path, _configuration(path, profile, stored.spec)
    return configurations


def keep_measured(path: Path, profile: ServerProfile, measured: EfficiencyTuple, at: str) -> None:
    """Write what serving has made of the tuple into the file of `profile`, whose own tuple stays.

    Raises `ProfileError`, and changes nothing, if another profile has taken its place meanwhile; OSError if the file
    cannot be written.
    """
    now = read_server_profile(path)
    if replace(now, measured=None, measured_at=None) != replace(profile, measured=None, measured_at=None):
        raise ProfileError(f"{path} holds another profile by now: start the server anew to serve by it")
    write_server_profile(path, replace(now, measured=measured, measured_at=at))


def _profile_command(directory: Path, name: str) -> str:
    """What makes a profile of the cores that this process may use, wherever it is typed on this machine."""
    cores = available_cores()
    some = len(cores) < (os.cpu_count() or 1)
    return f"hebe profile {quote(str(directory))} --model {name}" + (f" --cores {core_list(cores)}" if some else "")


def _on_its_cores(directory: Path, path: Path, profile: ServerProfile, server: str) -> str:
    """How to serve by a profile that was made on a part of this server's cores; empty if that would not help."""
    usable, count = available_cores(), profile.server.cores
    if profile.subject.server == server or _but_for_cores(profile.subject.server) != _but_for_cores(server):
        return ""
    if len(usable) <= count:
        return ""
    own = profile.cores if profile.cores is not None and set(profile.cores) <= set(usable) else usable[:count]
    command = f"taskset -c {core_list(own)} hebe serve {quote(str(directory))} --profile {quote(str(path))}"
    return f", or serve on as many cores as it was made on ({command})"


def _but_for_cores(server: str) -> str:
    """The server's name without how many cores it has."""
    return re.sub(r"-[0-9]+-cores(?=-|$)", "", server)


def _configuration(path: Path, profile: ServerProfile, spec: ModelSpec) -> ServedConfiguration:
    accelerator = None
    if (use := profile.accelerator) is not None:
        try:
            use.check_unchanged()
            use.check(spec)
        except (ValueError, RepositoryError, ProfilingError) as fault:
            raise ProfileError(
                f"{path}: which rows are hot cannot be told any more: {fault}; profile {profile.subject.model} again"
            ) from None
        try:
            use.device()
        except GpuMissing as fault:
            raise ProfileError(
                f"{path}: was made with the accelerator {use.gpu}: {fault}; profile {profile.subject.model} again here"
            ) from None
        accelerator = use.accelerator
    return ServedConfiguration(
        profile.configuration,
        profile.subject.version,
        profile.subject.identity,
        profile.subject.sla,
        profile.efficiency,
        profile.measured,
        profile.measured_at,
        accelerator,
        partial(keep_measured, path, profile),
        (profile.server.idle_power_watts, profile.server.peak_power_watts),
        profile.power_budget_watts,
    )
