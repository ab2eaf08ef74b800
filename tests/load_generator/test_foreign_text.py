"""What others' text becomes before it is shown."""

import pytest

from hebe.load_generator.bounded_exchange import printable, printable_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("µs of Zürich", "µs of Zürich"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("first\nsecond\tthird", "first second third"),
        ("\ud800", r"\ud800"),
        ("\u202etxt", r"\u202etxt"),
        ("", ""),
    ],
)
def test_what_cannot_be_shown_is_escaped(text, shown):
    assert printable(text) == shown
    assert printable_json({text: [text, 1, None]}) == {shown: [shown, 1, None]}


def test_what_is_nested_too_deep_is_refused():
    deep = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deep"):
        printable_json(deep)
