import threading
from collections.abc import Callable

import pytest

from hebe.serving.engine.combining_queue import Turns


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
