"""Progress bars on a terminal for what reports how much is done."""

from __future__ import annotations

from collections.abc import Callable

from rich.progress import Progress


def bar_of(progress: Progress, title: str) -> Callable[[int, int], None]:
    """A bar of its own, which the function that is returned sets: how many of how many are done."""
    task = progress.add_task(title, total=None)

    def show(done: int, total: int) -> None:
        progress.update(task, completed=done, total=total)

    return show
