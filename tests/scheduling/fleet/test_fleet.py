"""Which workers are idle and what they should take, as the router keeps it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.profile import LatencyProfile
from hebe.query import Query, SubQuery
from hebe.scheduling.fleet.fleet import Fleet, FleetWorker


def profile(fixed_s: float, per_item_s: float) -> LatencyProfile:
    sizes = (1, 10, 100, 1000)
    return LatencyProfile(sizes, tuple(fixed_s + per_item_s * size for size in sizes), (0.0,) * 4)


PROFILES = {"gpu": profile(1e-3, 1e-5), "cpu": profile(1e-3, 5e-5)}


def test_a_fleet_needs_types_that_differ() -> None:
    with pytest.raises(ValueError, match="server types"):
        Fleet(["gpu", "gpu"])
    with pytest.raises(ValueError, match="server types"):
        Fleet([])


def test_service_times_are_the_profile_s_of_each_type() -> None:
    fleet = Fleet(["gpu", "cpu"], PROFILES | {"absent": profile(1.0, 1.0)})
    for items in (1, 100, 500):
        assert fleet.service_time_s(0, items) == pytest.approx(1e-3 + 1e-5 * items)
        assert fleet.service_time_s(1, items) == pytest.approx(1e-3 + 5e-5 * items)


def test_the_base_type_has_coefficient_one_and_others_less() -> None:
    gpu, cpu = Fleet(["gpu", "cpu"], PROFILES).coefficients(1000)
    assert gpu == 1.0
    assert cpu == pytest.approx(11 / 51)
    assert Fleet(["cpu", "gpu"], PROFILES).coefficients(1000) == [cpu, gpu], "whichever is named first"


def test_what_is_not_there_cannot_be_taken_or_added() -> None:
    fleet = Fleet(["gpu", "cpu"])
    (worker,) = fleet.add(7, "gpu", 1)
    with pytest.raises(KeyError):
        fleet.add(8, "tpu", 1)
    with pytest.raises(IndexError):
        fleet.take(1)
    assert fleet.take(0) is worker
    with pytest.raises(ValueError, match="not in list"):
        fleet.take_worker(worker)
    assert fleet.idle_workers == 0


def test_a_worker_that_goes_and_comes_back_keeps_what_it_runs() -> None:
    fleet = Fleet(["gpu"])
    idle, busy = fleet.add(7, "gpu", 2)
    fleet.take_worker(busy)
    busy.sub_query = SubQuery(Query(1, 10, 0.0), 0, 10)
    fleet.remove(busy)
    fleet.remove(idle)
    assert (fleet.workers, fleet.idle_workers) == ([], 0)
    fleet.put_back([busy])
    assert (fleet.workers, fleet.idle(0)) == ([busy], 0)
    fleet.release(busy)
    assert (busy.sub_query, busy.taken, fleet.idle(0)) == (None, False, 1)


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "release", "remove"]), st.integers(0, 1), st.integers(0, 9))))
def test_idle_are_those_that_are_there_and_were_not_taken(steps: list[tuple[str, int, int]]) -> None:
    fleet = Fleet(["gpu", "cpu"])
    there: dict[FleetWorker, bool] = {}
    for step, kind, number in steps:
        if step == "add":
            there.update(dict.fromkeys(fleet.add(number, fleet.types[kind], number % 3), False))
        elif step == "take" and fleet.idle(kind):
            there[fleet.take(kind)] = True
        elif there:
            worker = list(there)[number % len(there)]
            if step == "remove":
                fleet.remove(worker)
                del there[worker]
            elif step == "release" and there[worker]:
                fleet.release(worker)
                there[worker] = False
        assert set(fleet.workers) == set(there)
        assert {worker: worker.taken for worker in fleet.workers} == there
        idle = [worker.server_type for worker, taken in there.items() if not taken]
        assert (fleet.idle(0), fleet.idle(1), fleet.idle_workers) == (idle.count(0), idle.count(1), len(idle))
