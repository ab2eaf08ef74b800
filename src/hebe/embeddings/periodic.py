"""Looks after something in Redis that others may change, again and again, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from hebe.embeddings.store import StoreError, StoreUnavailable

log = logging.getLogger("hebe.tiers")


class Lookout:
    """Calls `look` every `period_s` from `start` on, whatever it raises. Why it failed is logged once, after `failing`;
    a tier that is unavailable is said where queries find it so.
    """

    def __init__(self, name: str, period_s: float, look: Callable[[], None], failing: str) -> None:
        self._period_s, self._look, self._failing = period_s, look, failing
        self.closing = threading.Event()
        """Set once it is to end: a look that takes long had better end too."""
        self._thread = threading.Thread(target=self._run, name=f"hebe-{name}", daemon=True)

    def start(self) -> None:
        """Look from time to time from now on."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. Closing twice is harmless."""
        self.closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        said: str | None = None
        while not self.closing.wait(self._period_s):
            try:
                self._look()
            except StoreUnavailable as fault:
                log.debug("%s: %s", self._failing, fault)
            except Exception as fault:  # a thread that ended would leave things as they are, unnoticed
                if str(fault) != said:
                    log.warning("%s: %s", self._failing, fault, exc_info=not isinstance(fault, StoreError))
                said = str(fault)
            else:
                said = None
