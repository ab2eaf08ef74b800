from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.serving.access.auth import Gate, TokenBucket, checked_tokens, read_tokens
from hebe.serving.requests.errors import ErrorKind, RequestError, ServeError


@given(st.floats(0.5, 1000), st.lists(st.floats(0, 2), min_size=1, max_size=200))
def test_no_more_than_burst_and_rate_are_ever_allowed(rate, gaps):
    bucket = TokenBucket(rate)
    now = 100.0
    allowed = 0
    for gap in gaps:
        now += gap
        allowed += bucket.take(now) == 0
    assert allowed <= bucket.burst + rate * sum(gaps[1:]) + 1e-6


def test_waiting_as_long_as_told_is_enough():
    bucket = TokenBucket(2.0)
    now = 0.0
    assert [bucket.take(now) for _ in range(3)] == [0, 0, 0.5]
    assert bucket.take(0.25) == 0.25
    assert bucket.take(0.5) == 0


def test_time_that_runs_back_costs_nothing():
    bucket = TokenBucket(1.0)
    assert bucket.take(10.0) == 0
    assert bucket.take(9.0) == pytest.approx(1.0)
    assert bucket.take(11.0) == 0


def test_without_tokens_everybody_is_admitted():
    gate = Gate()
    gate.admit(None, 0.0)
    gate.admit("Bearer anything", 0.0)


@pytest.mark.parametrize("header", ["Bearer secret", "bearer secret", "BEARER  secret "])
def test_a_known_token_is_admitted(header):
    Gate(["other", "secret"]).admit(header, 0.0)


@pytest.mark.parametrize(
    "header", [None, "", "secret", "Basic secret", "Bearer", "Bearer ", "Bearer secre", "Bearer \udcff"]
)
def test_anything_else_is_not(header):
    with pytest.raises(RequestError) as error:
        Gate(["secret"]).admit(header, 0.0)
    assert error.value.kind is ErrorKind.UNAUTHENTICATED
    assert "secre" not in error.value.message


def test_one_text_is_not_taken_for_as_many_tokens_as_it_has_letters():
    for tokens in ("secret", b"secret"):
        with pytest.raises(ServeError, match="api_tokens is a single text: must be a tuple of them"):
            Gate(tokens)


@pytest.mark.parametrize("token", ["", " ", "\t\n", None, 7])
def test_no_token_is_empty(token):
    """It would be nobody's, or everybody's."""
    with pytest.raises(ServeError, match="an API token is empty"):
        Gate(["secret", token])


@pytest.mark.parametrize("token", ["schlüssel", "\ufeffsecret", "a\nb", "a\x00b"])
def test_tokens_that_a_header_cannot_carry_are_refused(token):
    """Nobody could ever send them; the message does not tell them."""
    with pytest.raises(ServeError, match="must be printable ASCII") as error:
        checked_tokens(["secret", token])
    assert token not in str(error.value)


def test_white_space_around_tokens_does_not_count():
    assert checked_tokens([" secret\n", "other"]) == ("secret", "other")
    Gate([" secret "]).admit("Bearer secret", 0.0)


def test_whether_a_token_is_asked_for():
    assert not Gate().asks
    assert Gate(["secret"]).asks


def test_each_token_has_its_own_rate():
    gate = Gate(["a", "b"], rate_limit_per_s=1.0)
    gate.admit("Bearer a", 0.0)
    gate.admit("Bearer b", 0.0)
    with pytest.raises(RequestError) as error:
        gate.admit("Bearer a", 0.5)
    assert error.value.kind is ErrorKind.RATE_LIMITED
    assert error.value.retry_after_s == pytest.approx(0.5)
    gate.admit("Bearer a", 1.0)


def test_a_wrong_token_does_not_use_up_the_rate_of_a_right_one():
    gate = Gate(["a"], rate_limit_per_s=1.0)
    for _ in range(5):
        with pytest.raises(RequestError):
            gate.admit("Bearer x", 0.0)
    gate.admit("Bearer a", 0.0)


def test_tokens_are_read_one_a_line(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("# for the ranking team\nabc\n\n  def \n")
    assert read_tokens(path) == ["abc", "def"]


def test_a_token_file_that_has_none_is_an_error(tmp_path):
    with pytest.raises(ServeError, match="No such file"):
        read_tokens(tmp_path / "absent")
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(ServeError, match="has no token; write one a line"):
        read_tokens(tmp_path / "empty")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ServeError, match="not UTF-8"):
        read_tokens(tmp_path / "binary")


def test_who_is_known_uses_up_no_rate():
    gate = Gate(["a"], rate_limit_per_s=1.0)
    for _ in range(3):
        assert gate.knows("Bearer a")
    assert not gate.knows("Bearer b")
    assert not gate.knows(None)
    assert Gate().knows(None)
    gate.admit("Bearer a", 0.0)
