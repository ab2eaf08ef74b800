"""The `hebe` command: assembles the subcommands, each imported only when it is asked for."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hebe._version import __version__
from hebe.cli.terminal.output import (
    INTERRUPTED,
    TERMINATED,
    debugging,
    drop_unwritten,
    objects_printed,
    print_error,
    print_json,
)

_STDERR = 2
_PACKAGES = ("hebe", "hebe_lab")
"""Whose exceptions speak for themselves."""


@dataclass(frozen=True, slots=True)
class _Subcommand:
    """Where a subcommand lives: `attribute` of `module` is a `typer.Typer` or a plain function."""

    module: str
    attribute: str
    summary: str

    def load(self, name: str) -> Any:
        """Import the module and return the command to run."""
        target = getattr(import_module(self.module), self.attribute)
        holder = typer.Typer(add_completion=False)
        holder.callback()(_nothing)
        if isinstance(target, typer.Typer):
            holder.add_typer(target, name=name)
        else:
            holder.command(name)(target)
        group: Any = typer.main.get_command(holder)
        command = group.commands[name]
        _join_lines(command)
        return command


def _join_lines(command: Any) -> None:
    """Leave it to the terminal where the lines of a help text end: rich keeps those of the docstring."""
    command.help = re.sub(r"(?<=\S)\n(?=\S)", " ", command.help or "")
    for inner in getattr(command, "commands", {}).values():
        _join_lines(inner)


SUBCOMMANDS = {
    "model": _Subcommand("hebe.cli.model.command", "app", "List, make, train, import and measure models."),
    "serve": _Subcommand("hebe.cli.serve", "serve", "Serve every model of a repository over HTTP and gRPC."),
    "precompile": _Subcommand(
        "hebe.cli.precompile", "precompile", "Compile all kernels now, so that servers start sooner."
    ),
    "profile": _Subcommand(
        "hebe.cli.profile.command",
        "profile",
        "Find the best way to run a model on this server, within its SLA and power.",
    ),
    "estimate": _Subcommand(
        "hebe.cli.estimate.command",
        "estimate",
        "Estimate what a server that nobody here owns would do, from its data sheet.",
    ),
    "status": _Subcommand(
        "hebe.cli.status.command", "status", "Show how a running server is: what is wrong, models, tiers."
    ),
    "store": _Subcommand("hebe.cli.store", "app", "Look at persistent stores of rows, check, copy and restore them."),
    "update": _Subcommand(
        "hebe.cli.update.command", "app", "Watch the log of online updates, write to it, see who lags behind."
    ),
    "load": _Subcommand("hebe.cli.load.command", "load", "Send queries to a server and measure what it can take."),
    "plan": _Subcommand("hebe.cli.plan.command", "app", "Plan which servers to have, and what runs on them."),
    "simulate": _Subcommand(
        "hebe.cli.simulate.command", "simulate", "Simulate a pool of servers under a policy and a load."
    ),
    "demo": _Subcommand("hebe.cli.demo.command", "demo", "Train, serve and load a small model; write a page about it."),
}


def _add_commands(entries: Iterable[EntryPoint]) -> None:
    """Add the commands of other packages, as of `hebe_lab`: each entry is a mapping of names to module, attribute and
    summary. No name is taken twice, and one that cannot be read costs its own commands alone.
    """
    for entry in entries:
        try:
            commands = {name: _Subcommand(*where) for name, where in entry.load().items()}
        except Exception as error:
            package = entry.dist.name if entry.dist is not None else entry.value
            print_error(f"the commands of {package} are left out: {type(error).__name__}: {error}")
            continue
        SUBCOMMANDS.update({name: command for name, command in commands.items() if name not in SUBCOMMANDS})


_add_commands(entry_points(group="hebe.commands"))


class _LazyGroup(TyperGroup):
    """Lists the summaries above, and imports a subcommand when it is to run (or its own help is asked for)."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in SUBCOMMANDS:
            self.commands[args[0]] = SUBCOMMANDS[args[0]].load(args[0])
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="hebe",
    cls=_LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _nothing() -> None:
    """Stands in the list of commands until the command itself is imported."""


for _name, _subcommand in SUBCOMMANDS.items():
    app.command(_name, help=_subcommand.summary)(_nothing)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hebe {__version__}")
        raise typer.Exit


@app.callback(epilog="Example: hebe model new dlrm-rmc1 --repository models && hebe serve models")
def _global_options(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="HEBE_DEBUG", help="Show where an error arose (traceback).")
    ] = False,
    version: Annotated[  # noqa: ARG001  (the callback prints it)
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Serve deep recommendation models within their latency targets."""
    if debug:
        os.environ["HEBE_DEBUG"] = "1"


def explain(fault: Exception) -> str | None:
    """The line to show for `fault`, or None where it is a bug of ours and the traceback is the message.

    What Hebe itself raises (`SpecError`, `StoreError`, ...) and the operating system's refusals speak for
    themselves.
    """
    if type(fault).__module__.partition(".")[0] in _PACKAGES:
        return str(fault)
    if isinstance(fault, OSError) and fault.strerror:
        where = " -> ".join(str(name) for name in (fault.filename, fault.filename2) if name is not None)
        return f"{where}: {fault.strerror}" if where else fault.strerror
    if isinstance(fault, RuntimeError):
        from hebe.serving.requests.errors import NO_THREAD, NO_THREAD_ADVICE

        if str(fault) == NO_THREAD:
            return f"{fault}: {NO_THREAD_ADVICE}"
    return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    printed = objects_printed()
    try:
        _open_standard_streams()
        with _ended_by_signals():
            app(args=arguments, prog_name="hebe")
    except Exception as fault:
        message = explain(fault)
        if message is None or debugging():
            raise
        with contextlib.suppress(OSError):  # nor may a full disk keep the other stream from telling
            print_error(message)
        if "--json" in arguments:
            with contextlib.suppress(OSError):
                print_json({"error": message})
        drop_unwritten()
        sys.exit(1)
    except SystemExit as end:
        if end.code and "--json" in arguments and objects_printed() == printed:
            with contextlib.suppress(OSError):
                print_json({"error": _why(end)})
            drop_unwritten()
        raise


def _why(end: SystemExit) -> str:
    """What to say of a command that ended without an object of its own: stderr says it for people."""
    words: Callable[[], str] | None = getattr(end.__context__, "format_message", None)  # of wrong usage
    if words is not None:
        return words()
    if end.code == INTERRUPTED:
        return "interrupted"
    if end.code in TERMINATED:
        return "terminated"
    return f"ended with exit status {end.code}; stderr says why"


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that servers that were started are stopped.

    Whoever had them ignored (`nohup`) or handled keeps it so.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    ending = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ending = []  # only the main thread may
    for each in ending:
        signal.signal(each, leave)
    try:
        yield
    finally:
        for each in ending:
            signal.signal(each, signal.SIG_DFL)


def _open_standard_streams() -> None:
    """Open to nowhere what of stdin, stdout and stderr was closed when this process was started.

    Else the next socket gets such a number: what is printed goes there, and libuv aborts where it closes it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
