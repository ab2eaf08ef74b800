"""Which Redis has rows over a level 3: its name for those who bring it up to date together.

They are one consumer group, and each message goes to one of them. Two Redis with one group would each lack what went to
servers of the other, for good. Neither address nor content tells two Redis from each other, so each has a random name
for each content, which is a part of the group's:

    hebe:{CONTENT}:identity    string; made by the first server that opens the content there, and never changed

Where there is none, nobody knows which updates the rows there have: they go before it is made.
"""

from __future__ import annotations

import secrets
from urllib.parse import quote

from hebe.embeddings.redis.connection import CLIENT_MESSAGE
from hebe.embeddings.redis.followed_name import FollowedName
from hebe.embeddings.redis.redis_command import Command, Reply
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.store import StoreUnavailable


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
