"""What `hebe update push` says when it was cut short: how much the log has, and how to go on from there."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import typer

from hebe.cli.output import debugging, print_error, print_json

if TYPE_CHECKING:
    from hebe.embeddings.updates.contract import Topic, UpdateProducer

_INTERRUPTED = 130
_TERMINATED = (128 + signal.SIGTERM, 128 + signal.SIGHUP)


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
        return "interrupted", _INTERRUPTED
    if isinstance(fault, SystemExit):
        return ("terminated", fault.code) if fault.code in _TERMINATED else (None, 1)
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
