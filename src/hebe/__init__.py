"""Hebe: an inference server and capacity planner for deep recommendation models.

    hebe.load("repository", "dlrm").predict(features)     score items in this process
    hebe.JaggedKeys(values, offsets)                      a feature with a number of keys of its own for each item
    hebe.Server("repository").start()                     serve a repository from a thread of this process
    hebe.HPS("ps.json").lookup(keys, "wdl", "table1")     rows by key, from HugeCTR's tables and configuration
    hebe.LookupLayer("ps.json", "wdl", "table1", 16)      the same as a torch layer
    hebe.open_update_log("kafka://HOST:9092").producer()  a trainer's side of online updates

Importing this module imports nothing heavy; the entry points do when they are first used.
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from hebe._version import __version__

if TYPE_CHECKING:
    from hebe.embeddings.hps.hps import HPS
    from hebe.embeddings.updates.opening import open_update_log
    from hebe.query import JaggedKeys
    from hebe.runtime.loaded_model import LoadedModel
    from hebe.runtime.lookup_layer import LookupLayer
    from hebe.serving.server import Server, ServerOptions

__all__ = ["HPS", "JaggedKeys", "LookupLayer", "Server", "ServerOptions", "__version__", "load", "open_update_log"]


def load(directory: str | PathLike[str], name: str, version: int | None = None) -> LoadedModel:
    """Load model `name` from the repository at `directory`: the given version, or the newest.

    The result's `predict(features, dense=None)` returns float32 scores `[items, outputs]`. Raises
    `hebe.models.repository.repository.RepositoryError` if the repository has no such model or its files are damaged.
    """
    from hebe.runtime.loaded_model import LoadedModel

    return LoadedModel.load(directory, name, version)


def __getattr__(attribute: str) -> Any:
    if attribute in ("Server", "ServerOptions"):
        from hebe.serving import server

        return getattr(server, attribute)
    if attribute == "HPS":
        from hebe.embeddings.hps import hps

        return hps.HPS
    if attribute == "JaggedKeys":
        from hebe import query

        return query.JaggedKeys
    if attribute == "LookupLayer":
        from hebe.runtime import lookup_layer

        return lookup_layer.LookupLayer
    if attribute == "open_update_log":
        from hebe.embeddings.updates import opening

        return opening.open_update_log
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")
