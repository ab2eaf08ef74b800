"""The API token that a command sends, of an option, the environment or a file."""

from __future__ import annotations

from pathlib import Path

import typer


def token_to_send(context: typer.Context, api_token: str | None, token_file: Path | None) -> str | None:
    """`api_token`, or the first token of the file, which goes before the environment's. Wrong usage where the command
    line has both; raises `ServeError` for a file that has none.
    """
    from hebe.serving.access.auth import read_tokens

    if token_file is None:
        return api_token
    source = context.get_parameter_source("api_token")
    if source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter("give either --api-token or --api-token-file", param_hint="--api-token-file")
    return read_tokens(token_file)[0]
