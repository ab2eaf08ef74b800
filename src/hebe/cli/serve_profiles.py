"""`hebe serve --profile`: profiles that the server starts by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from hebe.runtime.loaded_model import LoadOptions
    from hebe.serving.hosting.served_configuration import ServedConfiguration

_SPLIT = ("workers", "worker_cores", "worker_threads", "batch_size")
"""Options that a profile decides itself."""


def check_profile_decides(context: typer.Context) -> None:
    """Wrong usage if an option says otherwise what a profile says."""
    for name in _SPLIT:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(
                f"a profile says how its model is split, and so does {option}: leave one of them out",
                param_hint="--profile",
            )


def profiled_configurations(
    directory: Path, paths: Sequence[Path], load: LoadOptions
) -> dict[str, ServedConfiguration]:
    """How to run the models that these profiles are of, loaded as `load` says. To be called before any thread is
    pinned: the server is known by the cores that may be used.

    Raises as `profile_to_serve.configurations_to_serve`.
    """
    if not paths:
        return {}
    from hebe.machine.this_server import core_layout, this_server
    from hebe.profiling.files.profile_to_serve import configurations_to_serve

    return configurations_to_serve(directory, paths, load.words(), this_server().name, core_layout())
