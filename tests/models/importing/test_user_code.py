import json

import pytest
import torch

from hebe.models.importing.user_code import CodeLine, user_line, user_line_of

OWN = 'File "/home/me/net.py", line {}, in forward\n    {}\n'
TORCHS = f'File "{torch.__path__[0]}/nn/functional.py", line 99, in softmax\n    ret = input.softmax(dim)\n'
STANDARD = f'File "{json.__file__}", line 12, in loads\n    decode(s)\n'


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("", None),
        (TORCHS, None),
        (OWN.format(31, "mask = seq != 0"), CodeLine("/home/me/net.py", 31, "mask = seq != 0")),
        (OWN.format(31, "a(seq)") + OWN.format(7, "b(seq)") + TORCHS, CodeLine("/home/me/net.py", 7, "b(seq)")),
        (OWN.format(31, "a(seq)") + STANDARD, CodeLine("/home/me/net.py", 31, "a(seq)")),
        (TORCHS + STANDARD, CodeLine(json.__file__, 12, "decode(s)")),
    ],
)
def test_the_users_innermost_line_is_found_in_what_was_written(written, line):
    assert user_line(written) == line


@pytest.mark.parametrize(("code", "told"), [("x" * 80, f": `{'x' * 80}`"), ("x" * 81, f": `{'x' * 77}...`"), ("", "")])
def test_a_line_is_told_by_the_files_name_and_cut(code, told):
    assert str(CodeLine("/home/me/net.py", 2, code)) == f"net.py, line 2{told}"


def test_a_fault_is_traced_to_the_line_that_it_came_through():
    with pytest.raises(ValueError, match="Expecting") as raised:
        json.loads("[")
    assert user_line_of(raised.value).code == 'json.loads("[")'


def test_a_fault_that_came_through_no_line_tells_it_in_its_text_or_its_cause():
    fault, cause = RuntimeError("why"), RuntimeError(OWN.format(7, "b(seq)"))
    assert user_line_of(fault) is None
    fault.__cause__ = cause
    cause.__cause__ = fault
    assert str(user_line_of(fault)) == "net.py, line 7: `b(seq)`"
