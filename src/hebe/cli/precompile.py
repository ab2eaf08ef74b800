"""`hebe precompile`: compile what runs on the CPU before anything is served."""

from __future__ import annotations

import time
from typing import Any

import typer
from rich.progress import Progress

from hebe.cli.terminal.options import KernelCacheOption, use_kernel_cache
from hebe.cli.terminal.output import JsonOption, make_console, make_progress, print_error, print_json


def precompile(kernel_cache: KernelCacheOption = None, as_json: JsonOption = False) -> None:
    """Compile all kernels that run on the CPU and keep them, so that what starts later need not.

    This takes some minutes the first time, and seconds where they are kept already. They are of this CPU, this version
    of Hebe, and these versions of Python and numba: each of these has kernels of its own in the cache.

    The cache lies beside Hebe's sources, or in ~/.cache/hebe where those cannot be written, unless --kernel-cache or
    HEBE_KERNEL_CACHE names another folder. Name the same folder then to hebe serve; the variable serves every command.

    Exit codes: 0 all are kept; 1 they cannot be kept; 2 wrong usage; 130, 143, 129 ended by Ctrl-C, SIGTERM or SIGHUP.

    Example: hebe precompile

    Example: hebe precompile --kernel-cache /var/cache/hebe && hebe serve models --kernel-cache /var/cache/hebe
    """
    use_kernel_cache(kernel_cache)
    started_s = time.perf_counter()
    with make_progress() as progress:
        made = _precompile(progress)
    made["seconds"] = round(time.perf_counter() - started_s, 3)
    if made["unkept"]:
        error = f"{made['unkept']} of {made['kernels']} kernels cannot be kept in {made['directory']}"
        print_error(error)
        if as_json:
            print_json({**made, "error": error})
        raise typer.Exit(1)
    make_console(as_json).print(
        f"{made['kernels']} kernels are ready: {made['compiled']} compiled in {made['seconds']:.0f} s, "
        f"{made['loaded']} kept before, {made['bytes'] / (1 << 20):.1f} MiB in {made['directory']}",
        markup=False,
        soft_wrap=True,
    )
    if as_json:
        print_json(made)


def _precompile(progress: Progress) -> dict[str, Any]:
    """What was made, by the names of `--json`. Raises `KernelCacheError` where nothing can be kept."""
    from hebe.kernels.kernel_cache import counts, required_kernel_folder
    from hebe.kernels.precompile import STEPS, precompile

    folder = required_kernel_folder()
    task = progress.add_task("compiling", total=len(STEPS))

    def report(step: str, done: int) -> None:
        kernels = counts.compiled + counts.loaded
        progress.update(task, completed=done, description=f"{kernels} kernels ready, {step}")

    precompile(report)
    return {
        "kernels": counts.compiled + counts.loaded,
        "compiled": counts.compiled,
        "loaded": counts.loaded,
        "unkept": counts.unkept,
        "directory": folder,
        "bytes": sum(each.stat().st_size for each in folder.iterdir()),
    }
