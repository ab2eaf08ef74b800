"""Places for calls, on a clock of the test's own; with gRPC itself, `test_grpc_limits`."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from hebe.serving.errors import ErrorKind, RequestError
from hebe.serving.grpc_places import CallPlaces

PATIENCE_S = 60.0


class Call:
    """A call whose message comes when the test says so, or which is ended."""

    def __init__(self):
        self.coming = asyncio.get_running_loop().create_future()

    async def read(self):
        return await self.coming


class Places(CallPlaces):
    def __init__(self, most=2):
        self.now = 0.0
        self.ended: list[tuple[Call, RequestError]] = []
        super().__init__("calls", most, 30.0, lambda: self.now, self.end)

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


async def test_a_call_without_a_message():
    places = Places()
    call, task = await begin(places)
    call.coming.set_result(grpc.aio.EOF)
    with pytest.raises(RequestError) as error:
        await task
    assert (error.value.kind, error.value.reason) == (ErrorKind.INVALID, "no_message")
    stream = Call()
    stream.coming.set_result(grpc.aio.EOF)
    assert await places.next_message(stream) is None
