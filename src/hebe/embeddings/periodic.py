"""Work that is done again and again, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from hebe.embeddings.store import StoreError, StoreUnavailable

log = logging.getLogger("hebe.tiers")


class Periodic:
    """Calls `work` every `period_s` from `start` on, whatever it raises. Why it failed is logged once, after `failing`;
    a tier that is unavailable is reported where queries find it so.
    """

    def __init__(self, name: str, period_s: float, work: Callable[[], object], failing: str) -> None:
        self._period_s, self._work, self._failing = period_s, work, failing
        self.closing = threading.Event()
        """Set once it is to end: work that takes long had better end too."""
        self._thread = threading.Thread(target=self._run, name=f"hebe-{name}", daemon=True)

    def start(self) -> None:
        """Begin; once is enough."""
        if self._thread.ident is None and not self.closing.is_set():
            self._thread.start()

    def close(self) -> None:
        """Stop, once the work in hand is done. Closing twice is harmless."""
        self.closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        logged: str | None = None
        while not self.closing.wait(self._period_s):
            try:
                self._work()
            except StoreUnavailable as error:
                log.debug("%s: %s", self._failing, error)
            except Exception as error:  # a thread that ended would leave things as they are, unnoticed
                if str(error) != logged:
                    log.warning("%s: %s", self._failing, error, exc_info=not isinstance(error, StoreError))
                logged = str(error)
            else:
                logged = None
