"""The rows of one model, as files have them that were made by its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hebe.embeddings.memory.keyed_rows import KeyedSource
from hebe.spec import EmbeddingTableSpec

_IDENTITY_DIGITS = 12
"""So much of a content's identity is in names that servers share."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelRows:
    """Those of `tables` of version `version` of `model`, in `sources` by table; they have the updates that were sent
    before `as_of_s` (Unix seconds), which is None where that is not known.

    `identity` tells these rows from others (`RocksDbStore.load`). A source may be lacking where a persistent store has
    the rows already, under the same identity.
    """

    model: str
    version: int
    tables: Sequence[EmbeddingTableSpec]
    sources: Mapping[str, KeyedSource]
    identity: str
    as_of_s: float | None = None

    @property
    def dims(self) -> dict[str, int]:
        """Embedding dim by table."""
        return {table.name: table.dim for table in self.tables}

    @property
    def content(self) -> str:
        """Names the rows, as servers that share a Redis have to: rows of other files are others, also when they are of
        a version of the same number.
        """
        return ".".join([self.model, str(self.version), *filter(None, [self.identity[:_IDENTITY_DIGITS]])])
