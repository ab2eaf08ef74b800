"""Places for calls, on a clock of the test's own; with gRPC itself, `test_grpc_limits`."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from hebe.serving.grpc.call_limits import CallPlaces
from hebe.serving.requests.errors import ErrorKind, RequestError

PATIENCE_S = 60.0


class Call:
    """A call whose message comes when the test says so, or which is ended."""

    def __init__(self):
        self.coming = asyncio.get_running_loop().create_future()

    async def read(self):
        return await self.coming


class Places(CallPlaces):
    def __init__(self, most=2, most_receiving=None, patience_s=30.0):
        self.now = 0.0
        self.ended: list[tuple[Call, RequestError]] = []
        super().__init__("calls", most, patience_s, lambda: self.now, self.end, most_receiving, most_bytes=1 << 26)

    async def end(self, call, error):
        self.ended.append((call, error))
        call.coming.set_exception(grpc.aio.AbortError("ended"))
        raise grpc.aio.AbortError("ended")


async def begin(places) -> tuple[Call, asyncio.Task]:
    """A call that has a place and waits for its message."""
    call = Call()

    async def wait():
        places.take()
        try:
            return await places.message(call)
        finally:
            places.give()

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    return call, task


async def test_a_place_is_taken_until_it_is_given_back():
    places = Places()
    places.take()
    places.take()
    with pytest.raises(RequestError) as error:
        places.take()
    assert (error.value.kind, error.value.reason) == (ErrorKind.RATE_LIMITED, "calls")
    assert error.value.message == "2 calls are under way, as many as may be; end some, or try again later"
    places.give()
    places.take()


async def test_a_message_in_time_reaches_its_call():
    places = Places()
    call, task = await begin(places)
    places.now = 29.9
    places.end_late()
    call.coming.set_result(b"hello")
    assert await task == b"hello"
    places.now = 100.0
    places.end_late()
    assert (places.ended, places.taken) == ([], 0)


async def test_a_late_message_ends_its_call():
    places = Places()
    late, late_task = await begin(places)
    places.now = 10.0
    _, task = await begin(places)
    places.now = 30.0
    places.end_late()
    with pytest.raises(grpc.aio.AbortError):
        await asyncio.wait_for(late_task, PATIENCE_S)
    ((ended, error),) = places.ended
    assert (ended, error.kind) == (late, ErrorKind.TIMED_OUT)
    assert error.message == "no message came within 30 s"
    assert places.taken == 1
    task.cancel()


async def test_the_call_that_has_waited_longest_makes_room_once_its_message_might_have_come():
    places = Places()
    first, first_task = await begin(places)
    places.now = 0.5
    _, second_task = await begin(places)
    places.now = 0.9
    with pytest.raises(RequestError):
        places.take()
    places.now = 1.1
    places.take()
    with pytest.raises(RequestError):
        places.take()
    with pytest.raises(grpc.aio.AbortError):
        await asyncio.wait_for(first_task, PATIENCE_S)
    assert [call for call, _ in places.ended] == [first]
    assert places.taken == 2
    second_task.cancel()


async def test_calls_that_are_being_answered_make_no_room():
    places = Places(most=1)
    places.take()
    places.now = 100.0
    with pytest.raises(RequestError):
        places.take()


async def settled():
    """Until all that can go on has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_only_so_many_messages_are_received_at_once_and_the_others_in_turn():
    places = Places(10, most_receiving=2)
    calls = [await begin(places) for _ in range(6)]
    assert list(places._waiting) == [calls[0][0], calls[1][0]]
    calls[3][1].cancel()
    calls[1][0].coming.set_result(b"one")
    assert await calls[1][1] == b"one"
    await settled()
    assert list(places._waiting) == [calls[0][0], calls[2][0]]
    calls[0][0].coming.set_exception(grpc.aio.AbortError("gone"))
    calls[2][0].coming.set_result(b"two")
    await settled()
    assert list(places._waiting) == [calls[4][0], calls[5][0]]
    for call, task in calls[4:]:
        call.coming.set_result(b"last")
        assert await task == b"last"
    with pytest.raises(grpc.aio.AbortError):
        await calls[0][1]
    _, task = await begin(places)
    assert len(places._waiting) == 1, "every turn was given back"
    task.cancel()


async def test_a_call_that_is_cancelled_as_its_turn_comes_gives_it_to_the_next():
    places = Places(10, most_receiving=1)
    calls = [await begin(places) for _ in range(3)]
    calls[0][1].cancel()
    await asyncio.sleep(0)
    calls[1][1].cancel()
    await settled()
    assert list(places._waiting) == [calls[2][0]]
    calls[2][1].cancel()


async def test_a_call_that_gets_no_turn_is_told_to_come_again():
    places = Places(10, most_receiving=1, patience_s=0.01)
    _, first = await begin(places)
    _, second = await begin(places)
    with pytest.raises(RequestError) as error:
        await asyncio.wait_for(second, PATIENCE_S)
    assert (error.value.kind, error.value.reason) == (ErrorKind.OVERLOADED, "bytes_in_flight")
    assert error.value.message.startswith("the messages of 1 other calls are being received")
    assert places.taken == 1
    first.cancel()


async def test_where_no_turn_comes_free_for_a_second_the_longest_one_ends():
    """One a second; as long as messages come, however slowly, none does."""
    places = Places(10, most_receiving=2)
    calls = [await begin(places) for _ in range(2)]
    places.now = 20.0
    places.end_late()
    assert not places.ended, "nobody waits"
    calls += [await begin(places) for _ in range(3)]
    places.now = 20.9
    places.end_late()
    calls[1][0].coming.set_result(b"slow")
    await settled()
    places.now = 21.8
    places.end_late()
    await settled()
    assert not places.ended
    places.now = 21.9
    places.end_late()
    places.end_late()
    await settled()
    ((ended, error),) = places.ended
    assert (ended, error.kind) == (calls[0][0], ErrorKind.TIMED_OUT)
    assert error.message == "the message did not come within 21.9 s, and others wait to send theirs"
    assert list(places._waiting) == [calls[2][0], calls[3][0]]
    places.now = 22.8
    places.end_late()
    assert len(places.ended) == 1
    for _, task in calls:
        task.cancel()
    await asyncio.gather(*(task for _, task in calls), return_exceptions=True)


async def test_a_call_without_a_message():
    places = Places()
    call, task = await begin(places)
    call.coming.set_result(grpc.aio.EOF)
    with pytest.raises(RequestError) as error:
        await task
    assert (error.value.kind, error.value.reason) == (ErrorKind.INVALID, "no_message")
    assert "one beyond the limit of 67,108,864 bytes" in error.value.message
    assert "--max-request-bytes raises" in error.value.message
    stream = Call()
    stream.coming.set_result(grpc.aio.EOF)
    assert await places.next_message(stream) is None
