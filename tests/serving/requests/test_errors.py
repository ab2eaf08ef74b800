from __future__ import annotations

import pytest

from hebe.serving.requests.errors import (
    MOST_MESSAGE_BYTES,
    ErrorKind,
    InvalidInput,
    LoadFailed,
    QueryRefused,
    RequestError,
    UnknownModel,
    as_request_error,
    described,
    quoted,
)


def test_a_fault_is_described_with_what_to_do_where_its_own_words_do_not_say():
    assert described(KeyError("x")) == "KeyError: 'x'"
    no_thread = described(RuntimeError("can't start new thread"))
    assert no_thread.startswith("RuntimeError: can't start new thread: the system has no memory left for one")
    assert "ulimit -v" in no_thread


class Costly(list):
    """What says so where it is written out."""

    def __repr__(self):
        raise AssertionError


def test_what_a_client_wrote_is_quoted_as_far_as_it_is_short():
    assert [quoted(value) for value in ("a", 1, True, None, 1.5)] == ["'a'", "1", "True", "None", "1.5"]
    assert quoted("x" * 1000) == "'" + "x" * 59
    assert quoted(Costly()) == "a list"
    assert quoted({"a": Costly()}) == "an object"


@pytest.mark.parametrize("letter", ["x", "ä", "€", "\U0001f600", "\ud800"])
@pytest.mark.parametrize("count", [0, 1, 100, 249, 250, 251, 330, 331, 499, 999, 1000, 1001, 100_000])
def test_messages_are_cut_to_what_can_be_sent(letter, count):
    whole = letter * count
    message = RequestError(ErrorKind.INVALID, whole).message
    size = len(whole.encode("utf-8", "backslashreplace"))
    assert len(message.encode()) <= MOST_MESSAGE_BYTES, "UTF-8 can carry it"
    if size <= MOST_MESSAGE_BYTES:
        assert message == whole.encode("utf-8", "backslashreplace").decode()
    else:
        assert message.endswith("...")
        assert len(message.encode()) > MOST_MESSAGE_BYTES - 10


@pytest.mark.parametrize("fault", [InvalidInput, QueryRefused, UnknownModel, LoadFailed])
def test_so_are_those_of_other_faults(fault):
    text = "why " * 1000
    error = as_request_error(fault("deadline", text) if fault is QueryRefused else fault(text))
    assert len(error.message) <= MOST_MESSAGE_BYTES
    assert str(error) == error.message
    assert not error.counted
