"""A name in Redis that servers follow: of the rows there, and so of the group of those who bring them up to date."""

from __future__ import annotations

from collections.abc import Callable


class FollowedName:
    """`current` is the name; None until Redis has told it. `changed` is called when it has come to be another one."""

    def __init__(self) -> None:
        self.current: str | None = None
        self.changed: Callable[[], None] | None = None

    def follow(self, name: str) -> None:
        """It is this one now. Raises what `changed` does: then it counts as not told, and is to be tried again."""
        self.current = name
        try:
            if self.changed is not None:
                self.changed()
        except BaseException:
            self.current = None
            raise
