"""Opens the connections to Redis servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hebe.embeddings.redis.connection import RedisAccess, parse_addresses

if TYPE_CHECKING:
    from hebe.embeddings.redis.nodes import RedisNodes


def open_nodes(addresses: str | Sequence[str], access: RedisAccess) -> RedisNodes:
    """The servers at `addresses`; nothing is connected before it is needed.

    Raises ValueError for addresses or files of TLS, `StoreError` naming the extra that brings the client library.
    """
    parsed = parse_addresses(addresses)
    from hebe.embeddings.redis.nodes import RedisNodes  # which imports the library, an optional package

    return RedisNodes(parsed, access)
