"""Follows all messages of an update log, and says what each of them is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.contract import Delivery, Topic, UpdateLog, UpdateSource

_LOOK_S = 2.0
"""How often topics are looked for that are new."""
_WAIT_S = 0.2
_MOST_MESSAGES = 64


class LogTail:
    """Reads the topics of `log` that are of `model` and `tables`, all where none is named, and those that come later.

    Begins with the oldest message if `from_start`, else after the newest. It reports nothing: nothing is kept for it.
    """

    def __init__(self, log: UpdateLog, model: str | None, tables: Sequence[str], from_start: bool) -> None:
        self._log, self._model, self._tables = log, model, frozenset(tables)
        self._sources: list[UpdateSource] = []
        self._known: set[Topic] = set()
        self._looked_s = float("-inf")
        named = [Topic(model, table) for table in tables] if model is not None else []
        self._follow({*named, *self._found()}, newest=not from_start)

    @property
    def topics(self) -> list[Topic]:
        """What is followed."""
        return sorted(self._known)

    def poll(self) -> list[Delivery]:
        """What has come; empty after a moment without news. Raises `StoreUnavailable`; trying again is harmless."""
        if time.monotonic() >= self._looked_s + _LOOK_S:
            self._follow(set(self._found()) - self._known, newest=False)  # all of a new topic has come since
        if not self._sources:
            time.sleep(_WAIT_S)
        wait_s = _WAIT_S / max(1, len(self._sources))
        found: list[Delivery] = []
        for source in self._sources:
            try:
                found += source.poll(_MOST_MESSAGES, wait_s)
            except StoreError:
                if not found:
                    raise
                break  # what was read does not come again; the next call meets the fault again
        return found

    def close(self) -> None:
        """Let go of the sources; the log is its owner's."""
        for source in self._sources:
            source.close()

    def _found(self) -> list[Topic]:
        topics = [
            topic
            for topic in self._log.topics()
            if self._model in (None, topic.model) and (not self._tables or topic.table in self._tables)
        ]
        self._looked_s = time.monotonic()
        return topics

    def _follow(self, topics: set[Topic], newest: bool) -> None:
        if topics:
            self._sources.append(self._log.source(None, sorted(topics), newest=newest))
            self._known |= topics


def described(delivery: Delivery, now_s: float, most_keys: int) -> dict[str, Any]:
    """A message as plain data: where it is, whose, what is in it and how old it is; `fault` of a poison message."""
    at, message = delivery.at, delivery.message
    place = {"model": at.model, "table": at.table, "partition": at.partition, "offset": delivery.offset}
    if message is None:
        return place | {"fault": delivery.error, "bytes": len(delivery.payload or b"")}
    count = len(message.keys)
    said = place | {
        "producer": message.producer,
        "sequence": message.sequence,
        "rows": 0 if message.rows is None else count,
        "deletes": count if message.rows is None else 0,
        "dim": None if message.rows is None else message.rows.shape[1],
        "sent_s": message.sent_s,
        "age_s": now_s - message.sent_s,
    }
    return said | ({"keys": message.keys[:most_keys].tolist()} if most_keys else {})


def line_of(message: dict[str, Any]) -> Text:
    """The same as a line for people."""
    line = Text(f"{message['model']}/{message['table']} {message['partition']}@{message['offset']}", style="bold")
    if "fault" in message:
        line.append(f"  poison, {message['bytes']:,} bytes: {message['fault']}", style="bold red")
        return line
    what = f"{message['rows']:,} rows of dim {message['dim']}" if message["rows"] else f"{message['deletes']:,} deletes"
    line.append(
        f"  {what}  {message['producer']} #{message['sequence']}  {age_text(message['age_s'])}", style="not bold"
    )
    if message.get("keys"):
        more = ", ..." if len(message["keys"]) < message["rows"] + message["deletes"] else ""
        line.append(f"  keys {', '.join(map(str, message['keys']))}{more}", style="dim not bold")
    return line


def age_text(age_s: float) -> str:
    """How long ago, in two places at most: 0.03 s, 4.5 min, 3 days."""
    if age_s < 0:
        return f"{-age_s:.2g} s ahead of this machine's clock"
    for unit, unit_s, until_s in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172800)):
        if age_s < until_s:
            value = age_s / unit_s
            return f"{value:.2g} {unit} old" if value < 10 else f"{value:.0f} {unit} old"
    return f"{age_s / 86400:.0f} days old"
