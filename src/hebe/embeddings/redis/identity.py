"""Which Redis has rows over a level 3: its name for those who bring it up to date together.

They are one consumer group, and each message goes to one of them. Two Redis with one group would each lack what went to
servers of the other, for good. Neither address nor content tells two Redis from each other, so each has a random name
for each content, which is a part of the group's:

    hebe:{CONTENT}:identity    string; made by the first server that opens the content there, and never changed

Where there is none, nobody knows which updates the rows there have: they go before it is made.

`FollowedName` is any such name in Redis that servers follow; a generation's (`generations`) is the other one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from urllib.parse import quote

from hebe.embeddings.redis.connection import CLIENT_MESSAGE
from hebe.embeddings.redis.layout import Command, Reply
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.store import StoreUnavailable


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


class RedisIdentity(FollowedName):
    """That of the rows of `content`, which `store` has."""

    def __init__(self, store: RedisStore, content: str) -> None:
        super().__init__()
        self._store = store
        self._key = b"hebe:{%s}:identity" % quote(content, safe="").encode()

    def look(self) -> None:
        """Ask for the name; make one where there is none, or put it back if Redis has lost it. Raises `StoreError`."""
        found = self._ask(b"GET")
        if found is None:
            if self.current is None:
                self._store.clear()
            self._ask(b"SET", self.current or secrets.token_hex(6), "NX")
            found = self._ask(b"GET")
        if not isinstance(found, bytes):
            raise StoreUnavailable("Redis does not keep its identity", CLIENT_MESSAGE)
        if (name := found.decode(errors="replace")) != self.current:
            self.follow(name)

    def _ask(self, verb: bytes, *arguments: str) -> Reply:
        [reply] = self._store.carry_out([Command(self._key, (verb, self._key, *map(str.encode, arguments)))])
        return reply
