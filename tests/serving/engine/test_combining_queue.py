import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest

from hebe.query import KeyCounts, QueryResult
from hebe.serving.engine.combining_queue import AnswerPost, Turns, WorkedTime, settle


def new_turns() -> tuple[Turns[list[int]], list[int]]:
    delivered: list[int] = []
    return Turns(list, delivered.extend), delivered


def appending(number: int) -> Callable[[list[int]], None]:
    return lambda effects: effects.append(number)


def test_what_is_told_is_done_at_once_and_delivered_after_its_turn():
    delivered: list[int] = []

    def deliver(effects: list[int]) -> None:
        assert not turns._turn.locked()
        delivered.extend(effects)

    turns: Turns[list[int]] = Turns(list, deliver)
    turns.tell(appending(1))
    turns.tell(appending(2))
    assert delivered == [1, 2]


def test_what_is_told_during_a_turn_is_done_after_it_without_the_teller_waiting():
    turns, delivered = new_turns()
    with turns.alone() as effects:
        effects.append(0)
        teller = threading.Thread(target=lambda: [turns.tell(appending(number)) for number in (1, 2)])
        teller.start()
        teller.join(10)
        assert not teller.is_alive()
        assert delivered == []
    assert delivered == [0, 1, 2]


def test_what_is_told_within_a_turn_is_done_after_it():
    turns, delivered = new_turns()

    def tell_more(effects: list[int]) -> None:
        turns.tell(appending(2))
        effects.append(1)

    turns.tell(tell_more)
    assert delivered == [1, 2]


def test_a_turn_that_fails_keeps_nobody_from_the_next():
    turns, delivered = new_turns()

    def fail(_effects: list[int]) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        turns.tell(fail)

    def fail_alone() -> None:
        with turns.alone():
            turns.tell(appending(1))
            raise MemoryError

    with pytest.raises(MemoryError):
        fail_alone()
    assert delivered == [1]
    turns.tell(appending(2))
    assert delivered == [1, 2]


def test_of_many_threads_all_is_done_one_at_a_time_in_each_ones_order():
    done: list[tuple[int, int]] = []
    inside = [0]

    def work(of: tuple[int, int]) -> Callable[[list[int]], None]:
        def told(_effects: list[int]) -> None:
            inside[0] += 1
            assert inside[0] == 1
            done.append(of)
            inside[0] -= 1

        return told

    turns: Turns[list[int]] = Turns(list, lambda _effects: None)
    start = threading.Barrier(8)

    def run(thread: int) -> None:
        start.wait()
        for number in range(2000):
            turns.tell(work((thread, number)))

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(done) == 16_000
    for thread in range(8):
        assert [number for of, number in done if of == thread] == list(range(2000))


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


def test_threads_that_run_at_a_time_count_once():
    worked = WorkedTime()
    worked.begin(0, 1.0)
    worked.begin(1, 2.0)
    worked.end(0, 3.0)
    worked.begin(0, 4.0)
    worked.end(1, 5.0)
    worked.end(0, 6.0)
    assert worked.until(8.0) == pytest.approx(5.0)


def test_time_without_a_batch_does_not_count_and_a_batch_that_runs_does():
    worked = WorkedTime()
    assert worked.until(1.0) == 0.0
    worked.begin(0, 1.0)
    assert worked.until(1.5) == pytest.approx(0.5)
    worked.end(0, 2.0)
    worked.begin(0, 5.0)
    assert worked.until(5.25) == pytest.approx(1.25)


def test_one_batch_after_another_is_one_time_and_an_end_counts_once():
    worked = WorkedTime()
    worked.begin(0, 1.0)
    worked.begin(0, 2.0)
    worked.end(0, 3.0)
    worked.end(0, 4.0)
    assert worked.until(5.0) == pytest.approx(2.0)
