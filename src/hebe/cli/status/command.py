"""`hebe status`: how a running server, its models and their tiers are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType

from hebe.cli.terminal.api_token import token_to_send
from hebe.cli.terminal.output import JsonOption, make_console, print_error, print_json

if TYPE_CHECKING:
    from hebe.load_generator.target import Target

_CONNECTION = "Server and connection"


def status(
    context: typer.Context,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="http(s)://HOST:PORT of the server's HTTP port, or HOST:PORT.")
    ],
    watch: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="Ask again so often, until Ctrl-C, instead of once."),
    ] = None,
    api_token: Annotated[
        str | None, typer.Option(rich_help_panel=_CONNECTION, envvar="HEBE_API_TOKEN", help="Token to send.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--api-token-file", "--token-file", rich_help_panel=_CONNECTION, help="File whose first token is sent."
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_CONNECTION, help="PEM certificates to trust instead of the system's."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show how a running server is: first what is wrong, since when and why, then its models, their tiers and updates.

    A server may be ready and degraded: a tier that fails is not asked, those below it answer, and it is asked again
    until it is back. Nothing need be done about the server then, but about what the reason names. A model is not ready
    when a worker has ended, its batches fail, no tier has its rows, or most keys of its answers got default vectors in
    the last seconds. Since when is not known of workers that have
    ended: the cell is empty then. A server on which no model is loaded is not ready either.

    Exit code: 0 the server is ready; 1 it is not, or cannot be reached; 2 wrong usage.

    Example: hebe status http://127.0.0.1:8000

    Example: hebe status https://ranking-3:8000 --token-file token --watch 2
    """
    from hebe.load_generator.error import LoadError

    target = _target(url, token_to_send(context, api_token, token_file), ca_file)
    console = make_console(as_json)
    if watch is None:
        document = ask(target)
        _show(document, _tables(document, target, console), console, as_json)
        raise typer.Exit(_exit_code(document))
    exit_code = 1
    try:
        while True:
            try:
                document = ask(target)
                tables = _tables(document, target, console)
                exit_code = _exit_code(document)
                if console.is_terminal:
                    console.clear()
                _show(document, tables, console, as_json)
            except LoadError as fault:
                exit_code = 1
                print_error(f"{time.strftime('%H:%M:%S')}: {fault}")
            time.sleep(watch)
    except KeyboardInterrupt:
        raise typer.Exit(exit_code) from None


def ask(target: Target) -> dict[str, Any]:
    """The status document of the server at `target`. Raises `LoadError` if there is none."""
    from hebe.load_generator.discovery import get_json, told_error
    from hebe.load_generator.error import LoadError

    url = target.endpoint.url
    code, document = get_json(target, "/v2/status", "give the server's HTTP port, 8000 by default")
    if code in (401, 403):
        raise LoadError(f"{url} wants an API token, or another one ({code}): give --token-file")
    if code != 200:
        told = told_error(document)
        raise LoadError(f"{url} does not tell its status: it answers {code}{f' ({told})' if told else ''}")
    if not isinstance(document, dict) or not isinstance(document.get("server"), dict):
        raise LoadError(f"{url} does not tell its status as Hebe does: it is another server")
    return document


def _target(url: str, api_token: str | None, ca_file: Path | None) -> Target:
    """What to ask. Wrong usage if that cannot be."""
    from hebe.load_generator.error import LoadError
    from hebe.load_generator.target import Target, parse_endpoint

    if url.startswith(("grpc://", "grpcs://")):
        raise typer.BadParameter(f"{url}: the status is told over HTTP: give http://HOST:PORT", param_hint="URL")
    try:
        return Target(parse_endpoint(url, "http"), "", api_token=api_token, ca_file=ca_file)
    except LoadError as fault:
        raise typer.BadParameter(str(fault)) from None


def _exit_code(document: dict[str, Any]) -> int:
    return 0 if document["server"].get("ready") is True else 1


def _tables(document: dict[str, Any], target: Target, console: Console) -> RenderableType:
    """What `console` is to show. Raises `LoadError` where the document is not as this version of hebe expects it: from
    a newer server, or one that only seems to be Hebe.
    """
    from hebe._version import __version__
    from hebe.cli.status.tables import status_tables
    from hebe.load_generator.bounded_exchange import printable_json
    from hebe.load_generator.error import LoadError
    from hebe.spec import SpecError

    version: object = None
    try:
        shown = printable_json(document)
        version = shown["server"].get("version")
        tables = status_tables(shown, target.endpoint.url)
        console.render_lines(tables)  # cells of a wrong type are met only here
    except SpecError as fault:
        why = str(fault)
    except KeyError as missing:
        why = f"field {missing} is missing"
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        why = "a field is not of the kind, or in the range, that it should be"
    else:
        return tables
    other = f" (this is {__version__}, the server {version})" if isinstance(version, str) and version else ""
    raise LoadError(
        f"{target.endpoint.url} does not tell its status as this version of hebe understands it: {why}; use the"
        f" version of hebe that the server runs{other}"
    )


def _show(document: dict[str, Any], tables: RenderableType, console: Console, as_json: bool) -> None:
    console.print(tables, crop=False)
    if as_json:
        print_json(document)
