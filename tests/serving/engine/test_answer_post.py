import asyncio
import threading

import numpy as np
import pytest

from hebe.query import KeyCounts, QueryResult
from hebe.serving.engine.combining_queue import AnswerPost, settle


def result(query_id: int) -> QueryResult:
    return QueryResult(query_id, np.zeros((1, 1), np.float32), 0.0, 0.0, 0.0, 0.0, KeyCounts(), 0.0)


async def test_answers_of_other_threads_arrive_by_one_wake_up(monkeypatch):
    loop = asyncio.get_running_loop()
    post, wake_ups = AnswerPost(loop), []
    call = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: (wake_ups.append(args), call(*args)))
    for again in (1, 2):
        futures = [loop.create_future() for _ in range(3)]
        giver = threading.Thread(target=lambda: [post.give(each, result(n)) for n, each in enumerate(futures)])  # noqa: B023
        giver.start()
        giver.join()  # the loop has not looked yet
        assert len(wake_ups) == again
        assert [(await each).query_id for each in futures] == [0, 1, 2]


async def test_of_many_threads_every_answer_arrives():
    loop = asyncio.get_running_loop()
    post = AnswerPost(loop)
    futures = [loop.create_future() for _ in range(4000)]
    givers = [
        threading.Thread(target=lambda own: [post.give(each, result(0)) for each in own], args=(futures[first::4],))
        for first in range(4)
    ]
    for each in givers:
        each.start()
    async with asyncio.timeout(30):
        await asyncio.gather(*futures)
    for each in givers:
        each.join()


async def test_a_failure_is_raised_and_who_was_cancelled_hears_nothing():
    loop = asyncio.get_running_loop()
    failed, cancelled = loop.create_future(), loop.create_future()
    cancelled.cancel()
    post = AnswerPost(loop)
    post.give(cancelled, result(1))
    post.give(failed, ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await failed
    settle(cancelled, result(1))
    assert cancelled.cancelled()


def test_nobody_waits_on_a_loop_that_is_closed():
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    loop.close()
    AnswerPost(loop).give(future, result(1))
