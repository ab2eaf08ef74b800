from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from hebe.cli.terminal.api_token import token_to_send
from hebe.serving.requests.errors import ServeError


@pytest.fixture
def sent(tmp_path):
    """The token that a command sends with these options and this variable; its exit code if it sends none."""
    app = typer.Typer()

    @app.command()
    def command(
        context: typer.Context,
        api_token: Annotated[str | None, typer.Option(envvar="HEBE_API_TOKEN")] = None,
        api_token_file: Annotated[Path | None, typer.Option()] = None,
    ) -> None:
        typer.echo(token_to_send(context, api_token, api_token_file))

    (tmp_path / "token").write_text("# on call\nsecret\nother\n")

    def run(*options, variable=None):
        told = CliRunner().invoke(app, options, env={"HEBE_API_TOKEN": variable})
        if isinstance(told.exception, ServeError):
            raise told.exception
        return told.exit_code or told.stdout.strip()

    return run


def test_a_file_goes_before_the_environment_but_not_beside_another_option(sent, tmp_path):
    file = ["--api-token-file", str(tmp_path / "token")]
    assert sent() == ""
    assert sent(variable="old") == "old"
    assert sent(*file, variable="old") == "secret"
    assert sent("--api-token", "mine", variable="old") == "mine"
    assert sent("--api-token", "mine", *file) == 2
    with pytest.raises(ServeError, match="none: No such file or directory"):
        sent("--api-token-file", str(tmp_path / "none"))
