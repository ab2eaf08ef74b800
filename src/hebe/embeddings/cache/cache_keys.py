"""Which keys level 1 holds, on disk, so that the next start is as warm as the last run was, or another server's.

The file is safetensors: one int64 array of keys a table, those that matter most first. What a cache held, the most
recently used first, is a sample of what is asked for; a file of known frequencies, made elsewhere, has the same form.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from hebe.embeddings.store import EmbeddingCache, KeyArray, in_words

log = logging.getLogger("hebe.tiers")


def read_keys(paths: Iterable[Path]) -> dict[str, KeyArray]:
    """The keys by table of the first file that is there and whole; none if no one is. A broken one is logged."""
    for path in paths:
        if not path.exists():
            continue
        try:
            return {table: keys for table, keys in load_file(path).items() if keys.dtype == np.int64 and keys.ndim == 1}
        except (OSError, SafetensorError, ValueError) as fault:
            log.warning("keys to warm the cache up with cannot be read from %s: %s", path, fault)
    return {}


class CacheKeysFile:
    """Writes the keys of `cache` for the tables of `dims` to `path`, every `every_s` seconds once it is started,
    and when it is closed.
    """

    def __init__(self, path: Path, cache: EmbeddingCache, dims: Mapping[str, int], every_s: float = 300.0) -> None:
        self.path = path
        self._cache, self._tables, self._every_s = cache, tuple(dims), every_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hebe-cache-keys", daemon=True)

    def start(self) -> None:
        """Begin, on a thread that has priority and cores from the one that calls."""
        self._thread.start()

    def close(self) -> None:
        """Write once more; the cache must still be open. Closing twice is harmless."""
        if not self._closing.is_set():
            self._closing.set()
            if self._thread.ident is not None:
                self._thread.join()
            self._write()

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            self._write()

    def _write(self) -> None:
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            new.write_bytes(save({table: self._cache.keys_by_use(table) for table in self._tables}))
            os.replace(new, self.path)
        except Exception as fault:  # the next start is colder, that is all
            log.warning("the cache's keys cannot be saved in %s: %s", self.path, in_words(fault))
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
