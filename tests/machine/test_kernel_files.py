from __future__ import annotations

import errno

import pytest

from hebe.machine.kernel_files import listed_ranges, why_unreadable


@pytest.mark.parametrize(
    ("text", "ranges"), [("0", [(0, 0)]), ("0-3,8\n", [(0, 3), (8, 8)]), ("32-35,0-7", [(32, 35), (0, 7)])]
)
def test_ranges(text, ranges):
    assert listed_ranges(text) == ranges


@pytest.mark.parametrize("text", ["", "a", "0-3,", "1-x", "0-3:1"])
def test_what_is_no_list(text):
    with pytest.raises(ValueError, match="invalid literal"):
        listed_ranges(text)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (OSError(errno.EACCES, "Permission denied", "/sys/x"), "/sys/x is root's: be root"),
        (OSError(errno.EIO, "Input/output error", "/sys/x"), "/sys/x: Input/output error"),
        (OSError(errno.EIO, None, "/sys/x"), "/sys/x: OSError"),
        (ValueError("/sys/x holds 'y' where a number should be"), "/sys/x holds 'y' where a number should be"),
    ],
)
def test_why_a_file_cannot_be_read(fault, words):
    assert why_unreadable(fault, "is root's: be root") == words
