"""What holds for every command: help with an example, `--json`, and nothing heavy imported to show it."""

import subprocess
import sys

import pytest

from hebe.cli.main import SUBCOMMANDS

HEAVY = ("torch", "numba", "matplotlib", "scipy", "grpc")


def commands_of(name, command):
    """(words, command) of every command that does something, groups opened."""
    if hasattr(command, "commands"):
        return [found for inner, sub in command.commands.items() for found in commands_of(f"{name} {inner}", sub)]
    return [(name, command)]


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_command_has_help_with_an_example_and_json(name):
    faults = []
    for words, command in commands_of(name, SUBCOMMANDS[name].load(name)):
        options = {option for parameter in command.params for option in parameter.opts}
        text = f"{command.help or ''}\n{command.epilog or ''}"
        if "--json" not in options:
            faults.append(f"hebe {words}: has no --json")
        if "Example" not in text or f"hebe {words}" not in text:
            faults.append(f"hebe {words}: its help has no example ('Example: hebe {words} ...')")
        faults += [
            f"hebe {words}: {parameter.opts[-1]} has no help"
            for parameter in command.params
            if not getattr(parameter, "help", None)
        ]
    assert not faults, "\n".join(faults)


def heavy_after(arguments, exit_code, then=""):
    """What of `HEAVY` a process of its own has imported after this command, and after `then`."""
    check = (
        "import sys\n"
        "from hebe.cli.main import main\n"
        f"try: main({arguments!r})\n"
        f"except SystemExit as exit_: assert exit_.code == {exit_code}, exit_.code\n"
        f"{then}\n"
        f"print('heavy:', *[name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told, *heavy = done.stdout.splitlines()[-1].split()
    assert told == "heavy:"
    return heavy


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_help_needs_nothing_heavy(name):
    assert heavy_after([name, "--help"], 0) == []


def test_a_load_is_sent_without_anything_heavy():
    load = ["load", "http://127.0.0.1:1", "--model", "m", "--rate", "1", "--duration", "1"]
    sending = "import hebe.load_generator.session"
    assert heavy_after(load, 1, sending) == ["grpc"]  # which senders need, and which takes 10 ms
