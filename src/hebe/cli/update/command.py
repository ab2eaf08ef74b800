"""`hebe update`: watch the log of online updates, write to it, and see how far behind its readers are."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hebe.cli.terminal.options import check_at_least, naming_options
from hebe.cli.terminal.output import INTERRUPTED, JsonOption, make_console, make_progress, print_error, print_json
from hebe.report.tables import Column, FittingTable

if TYPE_CHECKING:
    from hebe.cli.update.push import UpdateChunk, UpdateFile
    from hebe.embeddings.config.hierarchy_config import UpdateConfig
    from hebe.embeddings.updates.contract import Topic, TopicPartition, UpdateLog

_RETRY_S = 0.5
_LONGEST_CLOSE_S = 10.0
_PARTS_PER_S = 20
"""Into how many parts the rows of a second are cut that is bounded."""
_OPTIONS = {"linger_s": "--linger-ms, in seconds,", "send_timeout_s": "--timeout"}
"""Fields of `BatchingOptions` that are called otherwise."""
_BATCHING, _REACHING = "Messages", "How the log is reached"

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Watch the log of online updates, write rows to it, see how far behind its readers are, and forget those of "
    "Kafka that are gone.",
    epilog="Example: hebe update tail /var/lib/hebe/updates",
)

LogArgument = Annotated[
    str,
    typer.Argument(
        metavar="LOG",
        help="A log's directory, redis://HOST:PORT (unix:///PATH; with TLS rediss://HOST:PORT, where "
        "?tls_ca_certificate=FILE may follow and, after &, tls_client_certificate, tls_client_key and "
        "tls_server_name_identification), kafka://HOST:PORT,HOST:PORT, or the FILE.toml that a server was given as "
        "--hierarchy: then it is the log of that server, reached as it says where no option says otherwise.",
    ),
]
PasswordOption = Annotated[
    Path | None,
    typer.Option("--password-file", rich_help_panel=_REACHING, help="File that holds Redis' password."),
]
KafkaOption = Annotated[
    Path | None,
    typer.Option(
        "--kafka-settings",
        rich_help_panel=_REACHING,
        help="File of lines NAME=VALUE for Kafka's client: security.protocol, sasl.username, ssl.ca.location, ...",
    ),
]
ModelOption = Annotated[str | None, typer.Option("--model", help="Only of this model.")]
TablesOption = Annotated[
    list[str] | None, typer.Option("--table", help="Only of this table; may be repeated. Needs --model.")
]


@app.command("tail", epilog="Example: hebe update tail redis://cache:6379 --model dlrm --from-start --json")
def tail(
    log: LogArgument,
    model: ModelOption = None,
    table: TablesOption = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Begin with the oldest message that the log has, not with the next.")
    ] = False,
    count: Annotated[int | None, typer.Option(help="End after so many messages.")] = None,
    keys: Annotated[int, typer.Option(help="Show the first so many keys of each message.")] = 0,
    password_file: PasswordOption = None,
    kafka_settings: KafkaOption = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print a JSON object a message on stdout, and one of their counts as the last."),
    ] = False,
) -> None:
    """Show the messages of a log as they come, until Ctrl-C.

    Each line says where a message stands (MODEL/TABLE PARTITION@OFFSET), how many rows or deletes it holds, whose it is
    and which number it has among that trainer's, and how long ago it was sent. What is no message is shown as poison.
    Watching changes nothing: servers miss nothing of what is shown here. An idle line means that nothing was sent.
    """
    _check_tables(model, table)
    if count is not None:
        check_at_least("--count", count, least=1)
    check_at_least("--keys", keys, least=0)
    console, totals = make_console(as_json), dict.fromkeys(("messages", "rows", "deletes", "poison"), 0)
    interrupted = False
    with _opened(log, password_file, kafka_settings, create=False) as opened:
        try:
            for message in _followed(opened, model, table or [], from_start, keys):
                totals["messages"] += 1  # before it is shown, so that Ctrl-C finds all counted that was
                totals["poison"] += "fault" in message
                totals["rows"] += message.get("rows", 0)
                totals["deletes"] += message.get("deletes", 0)
                if as_json:
                    print_json(message)
                else:
                    _print_message(console, message)
                if totals["messages"] == count:
                    break
        except KeyboardInterrupt:
            interrupted = True
    poison = f", {totals['poison']:,} of them poison" if totals["poison"] else ""
    console.print(f"{totals['messages']:,} messages{poison}: {totals['rows']:,} rows, {totals['deletes']:,} deletes")
    if as_json:
        print_json(totals)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


@app.command(
    "push", epilog="Example: hebe update push /var/lib/hebe/updates dlrm users new-rows.npz --rows-per-s 50000"
)
def push(
    context: typer.Context,
    log: LogArgument,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Whose table it is.")],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table that the rows are of.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help=".npz with arrays `keys` and `rows`, .safetensors with tensors of these names (or one `weight`, whose "
            "keys are its row numbers), .csv of lines KEY,V0,V1,..., or HugeCTR's directory with `key` and "
            "`emb_vector`.",
        ),
    ],
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the files' keys from the table; rows are not looked at.")
    ] = False,
    any_dim: Annotated[
        bool,
        typer.Option(
            "--any-dim",
            help="Push rows also where the newest that the log has of this table are of another dim, as for a new "
            "version of the model.",
        ),
    ] = False,
    rows_per_s: Annotated[
        float | None, typer.Option("--rows-per-s", help="Push no faster than this, to be gentle to servers.")
    ] = None,
    max_rows: Annotated[
        int, typer.Option("--max-rows", rich_help_panel=_BATCHING, help="Most rows of a message.")
    ] = 8192,
    max_message_bytes: Annotated[
        int, typer.Option("--max-message-bytes", rich_help_panel=_BATCHING, help="Most bytes of a message.")
    ] = 900_000,
    linger_ms: Annotated[
        float,
        typer.Option(
            "--linger-ms", rich_help_panel=_BATCHING, help="Longest that a row waits for its message to fill."
        ),
    ] = 100.0,
    timeout: Annotated[
        float, typer.Option(rich_help_panel=_REACHING, help="Seconds for which a log that takes nothing is waited for.")
    ] = 30.0,
    password_file: PasswordOption = None,
    kafka_settings: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write rows, or deletes, of a table to a log, from which servers take them while they serve.

    Rows replace those of the same keys, and new keys are added. A served model answers keys above its table's last row
    only where its features take new keys (--new-keys of `hebe model new` and `import`) and the table is read through
    tiers; else queries with such keys are refused, or get default vectors. `hebe.HPS` answers any key.

    When this command ends well the log has all of it; how far servers are then is told by `hebe update lag`. Cut short,
    it says how many rows the log took: push the same again, as rows that come twice change nothing, unless somebody
    pushed newer ones of the same keys in between. A log directory is made where there is none.
    """
    from hebe.cli.update.push import end_cut_short, of_known_dim, open_update_file, warn_of_new_table
    from hebe.embeddings.updates.contract import Topic
    from hebe.embeddings.updates.limits import BatchingOptions
    from hebe.spec import check_name

    check_name("model", model)
    check_name("table", table)
    if rows_per_s is not None:
        check_at_least("--rows-per-s", rows_per_s, more_than=0)
    try:
        options = BatchingOptions(max_rows, max_message_bytes, linger_ms / 1000, send_timeout_s=timeout)
    except ValueError as fault:
        raise typer.BadParameter(naming_options(str(fault), context, _OPTIONS)) from None
    topic, begun_s, pushed, producer = Topic(model, table), time.monotonic(), 0, None
    try:
        with contextlib.ExitStack() as left:
            # Before the log is opened: what cannot be read leaves no new, empty one behind.
            read = [open_update_file(path, delete=delete) for path in files]
            coming = (chunk for file in read for chunk in file.chunks)
            chunks: Iterable[UpdateChunk] = itertools.chain([next(coming)], coming)
            opened = left.enter_context(_opened(log, password_file, kafka_settings, create=True))
            warn_of_new_table(opened, topic)
            if not any_dim:
                chunks = of_known_dim(chunks, opened, topic)
            bar = left.enter_context(make_progress())
            task = bar.add_task(f"{'delete' if delete else 'push'} (rows)", total=_total(read))
            producer = opened.producer(options)
            left.callback(producer.close, min(timeout, _LONGEST_CLOSE_S))
            for keys, rows in _paced(chunks, rows_per_s):
                if rows is None:
                    producer.delete(model, table, keys)
                else:
                    producer.send(model, table, keys, rows)
                pushed += len(keys)
                bar.update(task, completed=pushed)
            producer.flush(timeout)
    except (Exception, KeyboardInterrupt, SystemExit) as fault:
        if producer is not None:
            end_cut_short(fault, producer, topic, delete=delete, as_json=as_json)
        raise
    seconds = time.monotonic() - begun_s
    what = "deletes" if delete else "rows"
    make_console(as_json).print(
        f"{pushed:,} {what} of table {table} of model {model} are in the log, in {seconds:.3g} s"
    )
    if as_json:
        counts = {"rows": 0 if delete else pushed, "deletes": pushed if delete else 0}
        print_json({"model": model, "table": table, **counts, "seconds": seconds, "rows_per_s": pushed / seconds})


@app.command("lag", epilog="Example: hebe update lag kafka://broker:9092 --reader hebe.dlrm.3f2a --max-lag 1000")
def lag(
    log: LogArgument,
    reader: Annotated[
        list[str] | None, typer.Option("--reader", help="Only this reader; may be repeated. Default: all.")
    ] = None,
    model: ModelOption = None,
    table: TablesOption = None,
    max_lag: Annotated[
        int | None,
        typer.Option(
            "--max-lag",
            help="Exit code 1 if a reader is more messages behind than this, or if none reads the log.",
        ),
    ] = None,
    password_file: PasswordOption = None,
    kafka_settings: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how many messages the readers of a log have yet to apply, by reader, table and partition.

    A reader is a store that keeps its place in the log, and reports it: a server's RocksDB, or a Redis that servers
    share. A message counts until the store has its rows and the reader has reported so.

    What is read into memory alone is not reported and not shown: `hebe status` and the metric hebe_updates_lag_messages
    of each server have how far it is. A table of a reader's model that the reader has never read is shown as not begun,
    and not counted: it may lie in table memory.

    A log in Redis keeps each message until all readers have applied it. A reader that is gone is shown, and holds
    messages, for a day after its last report (report_expiry_s in the URL of who writes says otherwise); in a log
    directory it is shown as long and holds nothing. Kafka keeps it until `hebe update forget`.
    """
    _check_tables(model, table)
    if max_lag is not None:
        check_at_least("--max-lag", max_lag, least=0)
    with _opened(log, password_file, kafka_settings, create=False) as opened:
        lags = {name: _lag_of(opened, name) for name in reader} if reader else _all_lags(opened)
        topics = [
            topic for topic in opened.topics() if model in (None, topic.model) and (not table or topic.table in table)
        ]
    readers: list[dict[str, Any]] = []
    for name, parts in lags.items():
        not_begun = _not_begun(name, parts, topics)
        chosen: list[dict[str, Any]] = [
            {"model": at.model, "table": at.table, "partition": at.partition, "messages": messages}
            for at, messages in sorted(parts.items())
            if model in (None, at.model) and (not table or at.table in table)
        ]
        if chosen or not_begun or reader:  # of a reader that was asked for, that it has nothing is an answer
            messages = sum(part["messages"] for part in chosen)
            readers.append({"reader": name, "messages": messages, "partitions": chosen, "not_begun": not_begun})
    behind = [found["reader"] for found in readers if max_lag is not None and found["messages"] > max_lag]
    _print_lag(readers, as_json)
    if as_json:
        print_json({"readers": readers, "max_lag": max_lag, "behind": behind})
    if behind:
        print_error(f"more than {max_lag:,} messages behind: {', '.join(behind)}")
        raise typer.Exit(1)
    if max_lag is not None and topics and not any(found["partitions"] for found in readers):
        names = ", ".join(f"{topic.model}/{topic.table}" for topic in topics)
        print_error(f"nothing reads {names}: no server has begun, or all have their tables in memory alone")
        raise typer.Exit(1)


@app.command("forget", epilog="Example: hebe update forget kafka://broker:9092 hebe.dlrm.5f0c2a9be114")
def forget(
    log: LogArgument,
    reader: Annotated[str, typer.Argument(metavar="READER", help="The reader, as `hebe update lag` shows it.")],
    password_file: PasswordOption = None,
    kafka_settings: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a reader that is gone, whose place in the log Kafka keeps as that of a consumer group of its name.

    In the other logs this is an error: what a reader has reported there expires by itself. Kafka keeps no messages for
    a reader, and refuses to forget one that is active. One that comes back goes on where its own rows are.
    """
    from hebe.embeddings.store import StoreError

    with _opened(log, password_file, kafka_settings, create=False) as opened:
        if not opened.forget_reader(reader):
            others = ", ".join(opened.readers()) or "none"
            raise StoreError(f"the log has no reader {reader}; its readers: {others}")
    make_console(as_json).print(f"reader {reader} is forgotten")
    if as_json:
        print_json({"reader": reader})


def _all_lags(log: UpdateLog) -> dict[str, Mapping[TopicPartition, int]]:
    return {name: log.reader_lag(name) for name in log.readers()}


def _lag_of(log: UpdateLog, reader: str) -> Mapping[TopicPartition, int]:
    """The lag of a reader that somebody names. Raises `StoreError` if there is none."""
    from hebe.embeddings.store import StoreError, StoreUnavailable

    lag = log.reader_lag(reader)
    if lag:
        return lag
    try:
        readers = log.readers()
    except StoreUnavailable:
        raise
    except StoreError:
        raise StoreError(f"the log has nothing of reader {reader}, and does not list its readers") from None
    if reader not in readers:
        raise StoreError(f"the log has no reader {reader}; its readers: {', '.join(readers) or 'none'}")
    return lag


def _not_begun(reader: str, lag: Mapping[TopicPartition, int], topics: Sequence[Topic]) -> list[str]:
    """The topics, MODEL/TABLE, of the reader's models that it has never read; what it read, or its name, says whose."""
    models, begun = {at.model for at in lag}, {at.topic for at in lag}
    return [
        f"{topic.model}/{topic.table}"
        for topic in topics
        if topic not in begun and (topic.model in models if models else f".{topic.model}." in f".{reader}.")
    ]


def _check_tables(model: str | None, tables: list[str] | None) -> None:
    if tables and model is None:
        raise typer.BadParameter("names a table of a model: give --model too", param_hint="--table")


@contextlib.contextmanager
def _opened(log: str, password_file: Path | None, kafka_settings: Path | None, *, create: bool) -> Iterator[UpdateLog]:
    """The log that the arguments name. Wrong usage for what is none."""
    from hebe.embeddings.config.hierarchy_config import ConfigError, HierarchyConfig, UpdateType, secret
    from hebe.embeddings.updates.kafka.options import read_security
    from hebe.embeddings.updates.opening import open_configured_log, open_update_log

    with _wrong_usage("--kafka-settings"):
        security = {} if kafka_settings is None else read_security(kafka_settings)
    password = "" if password_file is None else secret("", str(password_file))
    with _wrong_usage("LOG"):
        if log.endswith(".toml") and "://" not in log:
            config = HierarchyConfig.from_toml(Path(log)).update_source
            if config.type is UpdateType.NULL:
                raise ConfigError(f"{log}: its [update_source] has no type: that server takes no updates")
            opened = open_configured_log(_reached_with(config, password_file, kafka_settings), create=create)
        else:
            opened = open_update_log(log, password=password, security=security, create=create)
    with contextlib.closing(opened):
        yield opened


def _reached_with(config: UpdateConfig, password_file: Path | None, kafka_settings: Path | None) -> UpdateConfig:
    """A server's log, reached as the options say where they do. Wrong usage for one that is for another kind of log."""
    from hebe.embeddings.config.hierarchy_config import ConfigError

    for option, name, file in (
        ("--password-file", "password_file", password_file),
        ("--kafka-settings", "security_file", kafka_settings),
    ):
        if file is not None:
            change: dict[str, Any] = {name: str(file)}
            try:
                config = replace(config, **change)
            except ConfigError as fault:
                raise typer.BadParameter(str(fault), param_hint=option) from None
    return config


@contextlib.contextmanager
def _wrong_usage(option: str) -> Iterator[None]:
    """What the option's value makes raise ValueError, but for what our own faults say of files, is wrong usage."""
    try:
        yield
    except ValueError as fault:
        if type(fault) is not ValueError:
            raise
        raise typer.BadParameter(str(fault), param_hint=option) from None


def _followed(
    log: UpdateLog, model: str | None, tables: list[str], from_start: bool, most_keys: int
) -> Iterator[dict[str, Any]]:
    """Messages without end. A log that is away is waited for."""
    from hebe.cli.update.tail import LogTail, described
    from hebe.embeddings.store import StoreUnavailable

    with contextlib.closing(LogTail(log, model, tables, from_start)) as following:
        if not following.topics:
            make_console(as_json=True).print("the log has no such topics yet; what comes is shown")
        away = False
        while True:
            try:
                deliveries = following.poll()
            except StoreUnavailable as fault:
                if not away:
                    print_error(f"{fault}; trying again")
                away = True
                time.sleep(_RETRY_S)
                continue
            away = False
            now_s = time.time()
            yield from (described(delivery, now_s, most_keys) for delivery in deliveries)


def _print_message(console: Any, message: dict[str, Any]) -> None:
    from hebe.cli.update.tail import line_of

    console.print(line_of(message), soft_wrap=True)


def _total(files: Iterable[UpdateFile]) -> int | None:
    counts = [file.rows for file in files]
    return None if None in counts else sum(count for count in counts if count is not None)


def _paced(chunks: Iterable[UpdateChunk], rows_per_s: float | None) -> Iterator[UpdateChunk]:
    """The chunks, each when its time has come; cut small enough that the rate is even."""
    if rows_per_s is None:
        yield from chunks
        return
    step, due_s = max(1, int(rows_per_s / _PARTS_PER_S)), time.monotonic()
    for keys, rows in chunks:
        for first in range(0, len(keys), step):
            part = slice(first, first + step)
            time.sleep(max(0.0, due_s - time.monotonic()))
            yield keys[part], None if rows is None else rows[part]
            due_s = max(due_s, time.monotonic()) + len(keys[part]) / rows_per_s


def _print_lag(readers: list[dict[str, Any]], as_json: bool) -> None:
    console = make_console(as_json)
    if not readers:
        console.print("nothing has reported to read this log")
        return
    table = FittingTable("reader", "table", Column("partition", right=True), Column("messages behind", right=True))
    for found in readers:
        for part in found["partitions"]:
            name = f"{part['model']}/{part['table']}"
            table.add_row(found["reader"], name, str(part["partition"]), f"{part['messages']:,}")
        for name in found["not_begun"]:
            table.add_row(found["reader"], name, "", "not begun")
        table.add_row(found["reader"], "all", "", f"{found['messages']:,}")
    console.print(table, crop=False)
