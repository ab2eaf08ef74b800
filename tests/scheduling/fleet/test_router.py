from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.query import Query, SubQuery
from hebe.scheduling.events import (
    Availability,
    CompleteQuery,
    FailQuery,
    InstanceChanged,
    QueryArrived,
    QueryWithdrawn,
    RejectQuery,
    RejectReason,
    SendSubQuery,
    ShutdownBegan,
    SubQueryFinished,
)
from hebe.scheduling.fleet.distribution import DistributionPolicy, EarliestFinish, FirstComeFirstServed, SizeThreshold
from hebe.scheduling.fleet.fleet import Fleet
from hebe.scheduling.fleet.matching import CostMatching
from hebe.scheduling.fleet.router import Router, RouterConfig
from hebe.scheduling.fleet.splitting import PricedSplitting

UP, DRAINING, LOST = Availability.UP, Availability.DRAINING, Availability.LOST
SLA_S = 0.05
POLICIES = {
    "fcfs": FirstComeFirstServed,
    "threshold": lambda: SizeThreshold(100),
    "earliest": EarliestFinish,
    "matching": lambda: CostMatching(SLA_S, 1000),
    "splitting": lambda: PricedSplitting(SLA_S, [3.0, 1.0], most_parts=3),
}


def service_s(server_type: str, items: int) -> float:
    return 2e-3 + items * (2e-5 if server_type == "gpu" else 8e-5)


class World:
    """Plays the driver: keeps what instances run, and checks what no router may do."""

    def __init__(self, policy: DistributionPolicy, sla_s: float = SLA_S, **config: int) -> None:
        self.router = Router(Fleet(["gpu", "cpu"]), policy, RouterConfig(sla_s=sla_s, **config))
        self.now = 0.0
        self.types: dict[int, str] = {}
        self.workers: dict[int, int] = {}
        self.running: list[tuple[int, SubQuery]] = []
        self.arrived: set[int] = set()
        self.withdrawn: set[int] = set()
        self.answers: Counter[int] = Counter()
        self.done: dict[int, list[tuple[int, int]]] = {}

    def tell(self, event: object) -> list[object]:
        actions = self.router.handle(event, self.now)  # type: ignore[arg-type]
        for action in actions:
            if isinstance(action, SendSubQuery):
                assert action.instance_id in self.types, "sent to an instance that is not there"
                self.running.append((action.instance_id, action.sub_query))
                busy = sum(instance == action.instance_id for instance, _ in self.running)
                assert busy <= self.workers[action.instance_id], "more at a time than the instance has workers"
            else:
                assert isinstance(action, CompleteQuery | RejectQuery | FailQuery)
                self.answers[action.query.query_id] += 1
                if isinstance(action, CompleteQuery):
                    parts = sorted(self.done[action.query.query_id])
                    assert [stop for _, stop in parts[:-1]] == [start for start, _ in parts[1:]]
                    assert (parts[0][0], parts[-1][1]) == (0, action.query.items)
        return list(actions)

    def up(self, instance_id: int, server_type: str, workers: int = 1) -> list[object]:
        self.types[instance_id], self.workers[instance_id] = server_type, workers
        return self.tell(InstanceChanged(instance_id, server_type, UP, workers))

    def drain(self, instance_id: int) -> list[object]:
        return self.tell(InstanceChanged(instance_id, self.types[instance_id], DRAINING))

    def lose(self, instance_id: int) -> None:
        server_type = self.types.pop(instance_id)
        self.running = [entry for entry in self.running if entry[0] != instance_id]
        self.tell(InstanceChanged(instance_id, server_type, LOST))

    def arrive(self, query_id: int, items: int, **fields: float) -> list[object]:
        self.arrived.add(query_id)
        return self.tell(QueryArrived(Query(query_id, items, self.now, **fields)))  # type: ignore[arg-type]

    def finish(self, at: int, failed: bool = False) -> list[object]:
        instance_id, part = self.running.pop(at)
        self.done.setdefault(part.query.query_id, []).append((part.start, part.stop))
        takes_s = service_s(self.types[instance_id], part.items)
        return self.tell(SubQueryFinished(instance_id, part, takes_s, failed))


@pytest.fixture(params=POLICIES)
def world(request: pytest.FixtureRequest) -> World:
    return World(POLICIES[request.param]())


EVENTS = st.lists(
    st.tuples(st.sampled_from(["arrive"] * 4 + ["finish"] * 4
                              + ["fail", "withdraw", "up", "drain", "up_again", "lose", "wait"]), st.integers(0, 999)),
    min_size=1, max_size=60,
)  # fmt: skip


@pytest.mark.parametrize("name", POLICIES)
@given(events=EVENTS)
@settings(max_examples=80, deadline=None)
def test_every_query_is_answered_once_and_whole(name: str, events: list[tuple[str, int]]) -> None:
    world = World(POLICIES[name]())
    world.up(0, "gpu")
    world.up(1, "cpu", workers=2)
    next_id, next_instance = 0, 2
    for what, number in events:
        world.now += 1e-3
        if what == "arrive":
            world.arrive(next_id, number + 1)
            next_id += 1
        elif what in ("finish", "fail") and world.running:
            world.finish(number % len(world.running), failed=what == "fail")
        elif what == "withdraw" and next_id:
            world.tell(QueryWithdrawn(number % next_id))
            world.withdrawn.add(number % next_id)
        elif what == "up":
            world.up(next_instance, ("gpu", "cpu")[number % 2])
            next_instance += 1
        elif what == "drain" and world.types:
            world.drain(sorted(world.types)[number % len(world.types)])
        elif what == "up_again" and world.types:
            instance_id = sorted(world.types)[number % len(world.types)]
            world.up(instance_id, world.types[instance_id], world.workers[instance_id])
        elif what == "lose" and world.types:
            world.lose(sorted(world.types)[number % len(world.types)])
        elif what == "wait":
            world.now += SLA_S
    world.up(next_instance, "gpu")
    while world.running:
        world.now += 1e-3
        world.finish(0)
    for query_id in world.arrived - world.withdrawn:
        assert world.answers[query_id] == 1
    for query_id in world.withdrawn:
        assert world.answers[query_id] <= 1
    assert world.router.unanswered == 0
    assert world.router.policy.waiting == 0


def test_without_instances_queries_are_refused(world: World) -> None:
    (action,) = world.arrive(1, 10)
    assert action == RejectQuery(action.query, RejectReason.NO_WORKER)  # type: ignore[attr-defined]


def test_what_waits_when_the_last_instance_goes_is_refused(world: World) -> None:
    world.up(0, "gpu")
    world.arrive(1, 10)
    world.arrive(2, 10)
    world.lose(0)
    assert world.answers == {1: 1, 2: 1}


def test_a_full_queue_and_a_shutdown_refuse() -> None:
    world = World(FirstComeFirstServed(), max_queue=1)
    world.up(0, "gpu")
    world.arrive(1, 10)
    world.arrive(2, 10)
    (refused,) = world.arrive(3, 10)
    assert isinstance(refused, RejectQuery)
    assert refused.reason is RejectReason.QUEUE_FULL
    world.tell(ShutdownBegan())
    (refused,) = world.arrive(4, 10)
    assert isinstance(refused, RejectQuery)
    assert refused.reason is RejectReason.SHUTTING_DOWN
    assert isinstance(world.finish(0)[0], CompleteQuery)
    assert isinstance(world.finish(0)[0], CompleteQuery)


@pytest.mark.parametrize("name", POLICIES)
def test_in_a_full_queue_a_query_takes_the_place_of_one_that_cannot_be_in_time_any_more(name: str) -> None:
    """Else a queue that overload has filled with late queries would refuse all that could be in time, for good."""
    world = World(POLICIES[name](), max_queue=2)
    world.up(0, "cpu")
    for query_id in range(3):
        world.arrive(query_id, 900)
    (refused,) = world.arrive(3, 900)
    assert refused == RejectQuery(refused.query, RejectReason.QUEUE_FULL)  # type: ignore[attr-defined]
    world.now = 10 * SLA_S
    world.finish(0)
    world.arrive(4, 900)
    expired, *_ = world.arrive(5, 10)
    assert expired == RejectQuery(expired.query, RejectReason.EXPIRED)  # type: ignore[attr-defined]
    assert expired.query.query_id < 3  # type: ignore[attr-defined]
    while world.running:
        world.finish(0)
    assert world.answers == dict.fromkeys(range(6), 1)


def test_a_lost_instance_s_query_goes_to_another(world: World) -> None:
    world.up(0, "gpu")
    world.arrive(1, 10)
    world.up(1, "cpu")
    world.lose(0)
    assert [(instance, part.query.query_id) for instance, part in world.running] == [(1, 1)]


def test_a_draining_instance_finishes_and_gets_no_more(world: World) -> None:
    world.up(0, "gpu")
    world.up(1, "cpu")
    world.arrive(1, 500)
    first = world.running[0][0]
    world.drain(first)
    world.arrive(2, 10)
    world.arrive(3, 10)
    assert [instance for instance, _ in world.running].count(first) == 1
    world.finish(0)
    assert all(instance != first for instance, _ in world.running)
    assert not world.router.has(first)


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize(
    "new_policy", [EarliestFinish, lambda: CostMatching(0.013, 100), lambda: PricedSplitting(0.013, largest=100)],
    ids=["earliest", "matching", "splitting"],
)  # fmt: skip
def test_nobody_waits_for_a_draining_instance(new_policy: Callable[[], DistributionPolicy], drains: bool) -> None:
    """The gpu is done at 10 ms and would take 5 ms, sooner than the cpu's 11 ms from now, if it took anything."""
    world = World(new_policy(), sla_s=0.013)
    for predictor, times_s in zip(world.router.fleet.predictors, [(0.005, 0.010), (0.011, 0.012)], strict=True):
        for _ in range(300):
            predictor.observe(50, times_s[0])
            predictor.observe(100, times_s[1])
    world.up(0, "gpu")
    world.arrive(0, 100)
    world.up(1, "cpu")
    if drains:
        world.drain(0)
    world.now = 0.007
    world.arrive(1, 50)
    assert [instance for instance, _ in world.running] == ([0, 1] if drains else [0])


def test_while_all_instances_drain_queries_are_refused_at_once(world: World) -> None:
    world.up(0, "gpu")
    world.arrive(1, 10)
    world.arrive(2, 10)
    (refused,) = world.drain(0)
    assert refused == RejectQuery(refused.query, RejectReason.NO_WORKER)  # type: ignore[attr-defined]
    (refused,) = world.arrive(3, 10)
    assert refused == RejectQuery(refused.query, RejectReason.NO_WORKER)  # type: ignore[attr-defined]
    (answered,) = world.finish(0)
    assert isinstance(answered, CompleteQuery)
    assert world.answers == {1: 1, 2: 1, 3: 1}


def test_a_draining_instance_that_comes_up_again_has_all_its_workers(world: World) -> None:
    world.up(0, "cpu", workers=4)
    world.arrive(0, 10)
    world.drain(0)
    world.up(0, "cpu", workers=4)
    assert (len(world.router.fleet.workers), world.router.fleet.idle_workers) == (4, 3)
    for query_id in range(1, 6):
        world.arrive(query_id, 10)
    assert len(world.running) == 4
    while world.running:
        world.finish(0)
    assert world.answers == dict.fromkeys(range(6), 1)
    assert world.router.fleet.idle_workers == 4


def test_deadline_is_the_sla_s_unless_the_query_names_one(world: World) -> None:
    world.up(0, "gpu")
    world.now = 5.0
    world.arrive(1, 10)
    world.arrive(2, 10, deadline_s=5.01)
    assert world.running[0][1].query.deadline_s == pytest.approx(5.0 + SLA_S)
    world.finish(0)
    assert world.running[0][1].query.deadline_s == 5.01


def test_the_sla_counts_from_the_arrival_however_late_the_router_hears_of_it(world: World) -> None:
    world.up(0, "gpu")
    world.now = 5.0
    world.tell(QueryArrived(Query(1, 10, arrival_s=4.99)))
    assert world.running[0][1].query.deadline_s == pytest.approx(4.99 + SLA_S)


def test_how_soon_a_part_fails_says_nothing_of_how_long_one_takes() -> None:
    world = World(EarliestFinish())
    world.up(0, "gpu")
    for query_id in range(9):
        world.arrive(query_id, 100)
        world.finish(0)
    for query_id in range(9, 18):
        world.arrive(query_id, 100)
        instance_id, part = world.running.pop()
        world.tell(SubQueryFinished(instance_id, part, 1e-6, failed=True))
    assert world.router.fleet.service_time_s(0, 100) == pytest.approx(service_s("gpu", 100))


def test_a_part_that_the_instance_does_not_run_is_a_fault_of_the_driver(world: World) -> None:
    world.up(0, "gpu")
    query = Query(1, 10, 0.0)
    with pytest.raises(ValueError, match="instance 0 does not run this part of query 1"):
        world.tell(SubQueryFinished(0, SubQuery(query, 0, 10), 0.01))


@pytest.mark.parametrize("config", [{"sla_s": 0.0}, {"sla_s": float("nan")}, {"max_queue": 0}])
def test_configuration_is_checked(config: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(config))):
        RouterConfig(**config)  # type: ignore[arg-type]
