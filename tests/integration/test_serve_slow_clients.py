"""Clients that drip their request in are cut off in time. They began with the session's first bad-input test."""

from __future__ import annotations

from .served import PATIENCE_S, Dripping


def test_clients_that_take_their_time_are_cut_off(slow_clients: tuple[Dripping, Dripping]):
    """A head must come in ten seconds and a body in thirty, however busily its bytes drip in."""
    for client, answer, least_s in zip(
        slow_clients,
        (b"the request's head did not come within 10 s", b"the request's body did not come within 30 s"),
        (9, 29),
        strict=True,
    ):
        client.thread.join(2 * PATIENCE_S)
        assert client.answer.startswith(b"HTTP/1.1 408 ")
        assert answer in client.answer
        assert least_s < client.took_s < PATIENCE_S
