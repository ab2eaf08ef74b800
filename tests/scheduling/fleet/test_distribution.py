import pytest

from hebe.scheduling.fleet.distribution import DistributionPolicy, EarliestFinish, FirstComeFirstServed, SizeThreshold
from hebe.scheduling.fleet.fleet import Fleet

from .two_types import arrive, fleet_of, placed


def test_first_come_first_served_prefers_the_first_type() -> None:
    policy = FirstComeFirstServed()
    fleet = fleet_of(1, 2, policy)
    arrive(policy, fleet, 900, 10, 20, 30)
    assert placed(policy, fleet) == [(0, "gpu"), (1, "cpu"), (2, "cpu")]
    assert policy.waiting == 1
    fleet.release(next(worker for worker in fleet.workers if worker.server_type == 1))
    assert placed(policy, fleet) == [(3, "cpu")]


def test_size_threshold_sends_large_queries_to_the_base_and_lets_them_wait_for_it() -> None:
    policy = SizeThreshold(100)
    fleet = fleet_of(1, 2, policy)
    arrive(policy, fleet, 101, 500, 100, 1)
    assert placed(policy, fleet) == [(0, "gpu"), (2, "cpu"), (3, "cpu")]
    assert policy.waiting == 1


@pytest.mark.parametrize(("gpus", "cpus", "name"), [(2, 0, "gpu"), (0, 2, "cpu")])
def test_size_threshold_uses_what_there_is(gpus: int, cpus: int, name: str) -> None:
    policy = SizeThreshold(100)
    fleet = fleet_of(gpus, cpus, policy)
    arrive(policy, fleet, 500, 10)
    assert placed(policy, fleet) == [(0, name), (1, name)]


def test_size_threshold_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="threshold is -1"):
        SizeThreshold(-1)


def test_earliest_finish_weighs_the_wait_against_the_speed() -> None:
    policy = EarliestFinish()
    fleet = fleet_of(1, 1, policy)
    # 900 items: 10 ms on the gpu. Then 100 items end after 6 ms on the idle cpu, after 12 behind the first on the gpu.
    arrive(policy, fleet, 900, 100)
    assert placed(policy, fleet) == [(0, "gpu"), (1, "cpu")]
    # 800 items: 9 ms behind 10 on the gpu, 41 behind 6 on the cpu.
    arrive(policy, fleet, 800)
    assert placed(policy, fleet) == []
    fleet.release(next(worker for worker in fleet.workers if worker.server_type == 1))
    assert placed(policy, fleet) == [], "it has its queue and stays there"
    fleet.release(next(worker for worker in fleet.workers if worker.server_type == 0))
    assert placed(policy, fleet) == [(0, "gpu")]


def test_earliest_finish_takes_no_worker_for_free_before_now() -> None:
    policy = EarliestFinish()
    fleet = fleet_of(2, 0, policy)
    overdue = fleet.workers[1]
    fleet.take_worker(overdue)
    overdue.busy_until_s = 0.01
    arrive(policy, fleet, 10, now=0.02)
    assert placed(policy, fleet, now=0.02) == [(0, "gpu")]


def test_earliest_finish_counts_as_waiting_only_what_waits() -> None:
    policy = EarliestFinish()
    fleet = fleet_of(1, 1, policy)
    arrive(policy, fleet, 900, 900)
    assert placed(policy, fleet) == [(0, "gpu")], "10 ms there, and as long again for the other: 46 on the cpu"
    arrive(policy, fleet, 600)
    assert placed(policy, fleet) == [], "27 ms on the gpu, behind both, and 31 on the cpu"
    for now, query_id in ((0.01, 1), (0.02, 0)):
        fleet.release(next(worker for worker in fleet.workers if worker.taken))
        assert placed(policy, fleet, now) == [(query_id, "gpu")]
    fleet.release(next(worker for worker in fleet.workers if worker.taken))
    arrive(policy, fleet, 10, now=0.027)
    assert placed(policy, fleet, now=0.027) == [(0, "gpu")], (
        "1.1 ms on the gpu, for which nothing waits, 1.5 on the cpu"
    )


def test_of_workers_that_finish_at_the_same_time_earliest_finish_takes_the_first_type_s() -> None:
    policy = EarliestFinish()
    fleet = Fleet(["gpu", "cpu"])
    for instance_id, name in enumerate(("cpu", "gpu")):
        fleet.predictors[instance_id].observe(100, 0.01)
        fleet.add(instance_id, name, 1)
    policy.fleet_changed(fleet, 0.0)
    arrive(policy, fleet, 10)
    assert placed(policy, fleet) == [(0, "gpu")]


def test_earliest_finish_rehomes_what_waited_for_a_worker_that_went() -> None:
    policy = EarliestFinish()
    fleet = fleet_of(1, 1, policy)
    arrive(policy, fleet, 900, 900, 900)
    placed(policy, fleet)
    for worker in [worker for worker in fleet.workers if worker.server_type == 0]:
        fleet.remove(worker)
    policy.fleet_changed(fleet, 0.0)
    waiting = policy.waiting
    assert waiting == 2
    assert placed(policy, fleet) == [(1, "cpu")]


@pytest.mark.parametrize("policy", [FirstComeFirstServed(), SizeThreshold(50), EarliestFinish()])
def test_withdrawn_queries_are_forgotten(policy: DistributionPolicy) -> None:
    fleet = fleet_of(1, 1, policy)
    arrive(policy, fleet, 10, 100, 20, 200)
    policy.withdraw(2)
    policy.withdraw(77)
    assert policy.waiting == 3
    assert sorted(part.query.query_id for part in policy.withdraw_all()) == [0, 1, 3]
    assert policy.waiting == 0
