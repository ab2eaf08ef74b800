"""What `hebe update push` asks the log before it writes, and what it says when it was cut short: how much the log has,
and how to go on from there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import typer

from hebe.cli.terminal.output import INTERRUPTED, TERMINATED, debugging, make_console, print_error, print_json

if TYPE_CHECKING:
    from hebe.cli.update.update_files import UpdateChunk
    from hebe.embeddings.updates.contract import Topic, UpdateLog, UpdateProducer

_MOST_NAMED = 20
_LONGEST_LOOK_S = 2.0


def warn_of_new_table(log: UpdateLog, topic: Topic) -> None:
    """Say that the log has other tables of that model, and not this one: nobody may read what a typo names."""
    from hebe.embeddings.store import StoreError

    try:
        tables = [known.table for known in log.topics() if known.model == topic.model]
    except StoreError:  # a log that is away, or lists nothing, is told when it is written to, or takes it
        return
    if tables and topic.table not in tables:
        names = ", ".join(tables[:_MOST_NAMED]) + (", ..." if len(tables) > _MOST_NAMED else "")
        make_console(as_json=True).print(
            f"no table {topic.table} of model {topic.model} in the log so far; there are {names}", markup=False
        )


def of_known_dim(chunks: Iterable[UpdateChunk], log: UpdateLog, topic: Topic) -> Iterator[UpdateChunk]:
    """The chunks, none if their rows have another dim than the newest that the log has of the table: servers would put
    them aside. Raises `UpdateFileError` then.
    """
    from hebe.cli.update.update_files import UpdateFileError

    known: frozenset[int] | None = None
    for keys, rows in chunks:
        if rows is not None and known is None:
            known = _newest_dims(log, topic)
            if known and rows.shape[1] not in known:
                dims = " and ".join(map(str, sorted(known)))
                raise UpdateFileError(
                    f"table {topic.table}: these rows have dim {rows.shape[1]}, the newest in the log have {dims}: a "
                    f"server whose table has dim {dims} would put them aside; --any-dim pushes them all the same, as "
                    "for a new version of the model"
                )
        yield keys, rows


def _newest_dims(log: UpdateLog, topic: Topic) -> frozenset[int]:
    """Dims of the newest messages that the log has of `topic`, one of each partition; none where it does not say."""
    from hebe.embeddings.store import StoreError

    dims: set[int] = set()
    with contextlib.suppress(StoreError):  # told when it is written to
        if topic not in log.topics():
            return frozenset()
        with contextlib.closing(log.source(None, [topic])) as source:
            source.poll(0, 0.0)  # only then partitions are assigned
            newest = {at: source.last_offset(at) for at in source.assigned()}
            waiting = {at for at, offset in newest.items() if offset >= 0}
            for at in waiting:
                source.seek(at, newest[at] - 1)
            end_s = time.monotonic() + _LONGEST_LOOK_S
            while waiting and (left_s := end_s - time.monotonic()) > 0:
                for delivery in source.poll(len(newest), left_s):
                    waiting.discard(delivery.at)
                    if delivery.message is not None and delivery.message.rows is not None:
                        dims.add(delivery.message.rows.shape[1])
    return frozenset(dims)


def end_cut_short(fault: BaseException, producer: UpdateProducer, topic: Topic, *, delete: bool, as_json: bool) -> None:
    """Say why a push into `topic` ended and what the log has of it, and exit.

    Returns where the fault is a bug, whose traceback is the message, or shall be shown as one: then what the log has
    was said.
    """
    in_log, unsure = producer.keys_in_log()
    what = "deletes" if delete else "rows"
    said = _said_of(in_log, unsure, what)
    reason, code = _why(fault, topic)
    if reason is None or debugging():
        print_error(said)
        return
    print_error(f"{reason}; {said}")
    if as_json:
        counts = {"rows": 0, "deletes": 0} | {what: in_log, "unsure": unsure}
        print_json({"error": f"{reason}; {said}", "model": topic.model, "table": topic.table, **counts})
    raise typer.Exit(code) from None


def _why(fault: BaseException, topic: Topic) -> tuple[str | None, int]:
    """The reason in words, None where there are none, and the exit code."""
    from hebe.cli.main import explain

    if isinstance(fault, KeyboardInterrupt):
        return "interrupted", INTERRUPTED
    if isinstance(fault, SystemExit):
        return ("terminated", fault.code) if fault.code in TERMINATED else (None, 1)
    if type(fault) is ValueError:  # of the producer: arrays that are no rows of this table
        return f"table {topic.table}: {fault}", 1
    return explain(fault) if isinstance(fault, Exception) else None, 1


def _said_of(in_log: int, unsure: int, what: str) -> str:
    if not in_log and not unsure:
        return "nothing was pushed"
    more = f", and it may have up to {unsure:,} more" if unsure else ""
    return (
        f"the log took {in_log:,} {what}{more}; to go on, push the same again: {what} that come twice change nothing, "
        "unless newer ones of the same keys came in between"
    )
