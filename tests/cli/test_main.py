import inspect
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoint
from typing import Annotated

import pytest
import typer

import hebe
from hebe.cli import main as main_module
from hebe.cli.load.command import load
from hebe.cli.main import SUBCOMMANDS, explain, main
from hebe.cli.model.import_module import import_model
from hebe.cli.terminal.output import print_json
from hebe.serving.requests.errors import NO_THREAD_ADVICE
from hebe.spec import SpecError

HEAVY = ("torch", "numba", "matplotlib", "scipy", "grpc", "numpy", "structlog")


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err


@pytest.fixture
def failing(monkeypatch):
    """A subcommand `fail` that raises what the returned function is given."""
    monkeypatch.delenv("HEBE_DEBUG", raising=False)
    faults = []

    def fail(as_json: bool = False) -> None:  # noqa: ARG001
        raise faults[0]

    fail.__annotations__["as_json"] = main_module.Annotated[bool, main_module.typer.Option("--json")]
    monkeypatch.setitem(SUBCOMMANDS, "figures", main_module._Subcommand(__name__, "fail", ""))
    monkeypatch.setattr(sys.modules[__name__], "fail", fail, raising=False)
    return faults.append


def test_help_lists_every_command_and_imports_nothing_heavy():
    check = (
        "import sys\n"
        "from hebe.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as exit_: assert exit_.code == 0\n"
        f"assert not [name for name in {HEAVY} if name in sys.modules]\n"
        "assert {n for n in sys.modules if n.startswith('hebe')} "
        "<= {'hebe', 'hebe._version', 'hebe.cli', 'hebe.cli.terminal.output', 'hebe.cli.terminal', 'hebe.cli.main', "
        "'hebe_lab', 'hebe_lab.commands'}"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in SUBCOMMANDS:
        assert f" {name} " in done.stdout


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"hebe {hebe.__version__}\n", "")


def test_unknown_command_is_named_with_a_suggestion(capsys):
    code, _, err = run(capsys, "figure")
    assert code == 2
    assert "No such command 'figure'" in err
    assert "figures" in err


@pytest.mark.parametrize("name", ["bench", "figures"])
def test_command_help_is_the_commands_own_and_has_an_example(capsys, name):
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    assert f"hebe {name}" in out
    assert "--json" in out
    assert "Example" in out


@pytest.mark.parametrize(("command", "function"), [("load", load), ("model import", import_model)])
def test_help_is_wrapped_by_the_terminal_not_by_the_source(capsys, monkeypatch, command, function):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(capsys, *command.split(), "--help")
    paragraph = " ".join(inspect.getdoc(function).split("\n\n")[1].split())
    wrapped = textwrap.wrap(paragraph, 78, break_on_hyphens=False)
    assert len(wrapped) > 2
    assert "\n".join(wrapped) in "\n".join(line.strip() for line in out.splitlines())


def test_known_error_is_one_line(capsys, failing):
    failing(SpecError("model x: rows is 0"))
    assert run(capsys, "figures") == (1, "", "error: model x: rows is 0\n")


def test_known_error_is_an_object_with_json(capsys, failing):
    failing(SpecError("model [x]: rows is 0"))
    code, out, err = run(capsys, "figures", "--json")
    assert (code, err) == (1, "error: model [x]: rows is 0\n")
    assert json.loads(out) == {"error": "model [x]: rows is 0"}


def test_wrong_usage_is_an_object_with_json(capsys):
    code, out, err = run(capsys, "bench", "typo", "--json")
    assert code == 2
    assert "typo" in json.loads(out)["error"]
    assert "typo" in err
    code, out, _ = run(capsys, "model", "show", "dlrm-rmc1", "--sise", "small", "--json")
    assert (code, list(json.loads(out))) == (2, ["error"])
    assert run(capsys, "bench", "typo")[:2] == (2, ""), "not without --json"


def test_a_command_that_is_interrupted_says_so_with_json(capsys, failing):
    failing(KeyboardInterrupt())
    code, out, _ = run(capsys, "figures", "--json")
    assert (code, json.loads(out)) == (130, {"error": "interrupted"})


@pytest.mark.parametrize("printed", [True, False])
def test_a_command_that_ends_in_words_of_its_own_has_one_object(capsys, monkeypatch, printed):
    def ending(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
        if printed and as_json:
            print_json({"qps": 0})
        raise typer.Exit(3)

    monkeypatch.setitem(SUBCOMMANDS, "figures", main_module._Subcommand(__name__, "ending", ""))
    monkeypatch.setattr(sys.modules[__name__], "ending", ending, raising=False)
    code, out, _ = run(capsys, "figures", "--json")
    told = {"qps": 0} if printed else {"error": "ended with exit status 3; stderr says why"}
    assert (code, json.loads(out)) == (3, told)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_stdout_cannot_take_is_one_line_too(unbuffered, options):
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "hebe", "model", "list", *options],
            stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert found.returncode == 1
    assert found.stderr.endswith("error: No space left on device\n")
    assert "Traceback" not in found.stderr


def test_what_stderr_cannot_take_is_an_object_all_the_same(capsys, monkeypatch, failing):
    class Full(io.StringIO):
        def write(self, _text):
            raise OSError(28, "No space left on device")

    failing(SpecError("model x: rows is 0"))
    monkeypatch.setattr(sys, "stderr", Full())
    code, out, _ = run(capsys, "figures", "--json")
    assert (code, json.loads(out)) == (1, {"error": "model x: rows is 0"})


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed_are_not_given_to_something_else(closed):
    check = (
        "import os, sys\n"
        "from hebe.cli.main import main\n"
        "try: main(['--version'])\n"
        "except SystemExit as exit_: assert exit_.code == 0\n"
        "assert os.open(os.devnull, os.O_RDONLY) > 2\n"
        "assert not sys.stdin.read()\n"
        "print('x', flush=True)\n"
        "print('x', file=sys.stderr, flush=True)\n"
    )
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", check]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_debug_shows_the_traceback(monkeypatch, failing, how):
    monkeypatch.setenv("HEBE_DEBUG", "1" if how == "environment" else "0")
    failing(SpecError("model x"))
    with pytest.raises(SpecError):
        main(["--debug", "figures"] if how == "flag" else ["figures"])


def test_a_bug_is_not_hidden(failing):
    failing(KeyError("oops"))
    with pytest.raises(KeyError):
        main(["figures"])


def test_interrupt_ends_with_130(capsys, failing):
    failing(KeyboardInterrupt())
    assert run(capsys, "figures")[0] == 130


@pytest.fixture
def terminated(monkeypatch):
    """A subcommand that gets a signal which would end it; tells whether it could clean up."""
    cleaned_up = []

    def wait(number: int, _as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
        try:
            signal.raise_signal(number)
        finally:
            cleaned_up.append(number)

    monkeypatch.setitem(SUBCOMMANDS, "figures", main_module._Subcommand(__name__, "wait", ""))
    monkeypatch.setattr(sys.modules[__name__], "wait", wait, raising=False)
    return cleaned_up


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_terminated_says_so_with_json(capsys, terminated, number):
    before = signal.signal(number, signal.SIG_DFL)
    try:
        code, out, _ = run(capsys, "figures", str(int(number)), "--json")
    finally:
        signal.signal(number, before)
    assert terminated == [number]
    assert (code, json.loads(out)) == (128 + number, {"error": "terminated"})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_terminated_cleans_up(capsys, terminated, number):
    before = signal.signal(number, signal.SIG_DFL)
    try:
        assert run(capsys, "figures", str(int(number))) == (128 + number, "", "")
        assert terminated == [number]
        assert signal.getsignal(number) is signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)  # as nohup does
        assert run(capsys, "figures", str(int(number)))[0] == 0
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (FileNotFoundError(2, "No such file or directory", "a.toml"), "a.toml: No such file or directory"),
        (PermissionError(13, "Permission denied", "a", None, "b"), "a -> b: Permission denied"),
        (OSError(98, "Address already in use"), "Address already in use"),
        (RuntimeError("can't start new thread"), f"can't start new thread: {NO_THREAD_ADVICE}"),
        (RuntimeError("x"), None),
        (ValueError("x"), None),
        (OSError("x"), None),
    ],
)
def test_explain(fault, line):
    assert explain(fault) == line


def test_commands_of_other_packages_join_and_a_broken_one_costs_only_its_own(monkeypatch, capsys):
    monkeypatch.setattr(main_module, "SUBCOMMANDS", {"serve": SUBCOMMANDS["serve"]})
    offered = {"one": ("a.module", "run", "Does one thing."), "serve": ("a.module", "other", "Takes a name.")}
    monkeypatch.setattr(sys.modules[__name__], "OFFERED", offered, raising=False)
    entries = [
        EntryPoint("none", "no.such.module:COMMANDS", "hebe.commands"),
        EntryPoint("wrong", "math:pi", "hebe.commands"),
        EntryPoint("good", f"{__name__}:OFFERED", "hebe.commands"),
    ]
    main_module._add_commands(entries)
    assert list(main_module.SUBCOMMANDS) == ["serve", "one"]
    assert main_module.SUBCOMMANDS["serve"] is SUBCOMMANDS["serve"]
    assert capsys.readouterr().err.count("are left out") == 2
