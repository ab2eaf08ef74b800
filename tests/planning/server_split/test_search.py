import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.planning.error import PlanningError
from hebe.planning.server_split.guided_search import guided_search
from hebe.planning.server_split.search import (
    LEADERS,
    MOST_RIVALS,
    Limits,
    Reached,
    Step,
    baymax_search,
    deeprecsys_search,
    exhaustive_search,
    gradient_search,
    held_against,
    random_search,
    typical,
)
from hebe.planning.server_split.space import ParallelismSpace
from hebe.server_configuration import Lane, Placement

MODEL, PIPELINE = Placement.MODEL_ON_HOST, Placement.PIPELINE_ON_HOST
SPARSE, HOT = Placement.SPARSE_ON_HOST, Placement.HOT_SPARSE_ON_ACCELERATOR
BATCHES = (4, 8, 16, 32, 64, 128)
SPACE = ParallelismSpace(8, BATCHES, (MODEL,))


def lane(workers, cores=1, batch_size=4, **settings):
    return Lane(settings.pop("placement", MODEL), workers, cores, batch_size, **settings)


def hill(best, steep=0.1):
    """Throughput that falls, axis by axis, with the distance from `best`; power by cores."""

    def evaluate(configuration):
        (here,) = configuration
        far = abs(here.workers - best.workers) + abs(math.log2(here.batch_size / best.batch_size))
        far += 3 * abs(here.cores_per_worker - best.cores_per_worker) + abs(here.dense_workers - best.dense_workers)
        return Reached(1000 * math.exp(-steep * far), 50 + 10 * here.cores)

    return evaluate


def counted(evaluate):
    asked = []

    def ask(configuration):
        asked.append(configuration)
        return evaluate(configuration)

    return ask, asked


def test_algorithm_1_climbs_by_three_candidates_to_the_top_and_asks_nothing_twice():
    evaluate, asked = counted(hill(lane(4, batch_size=16)))
    found = gradient_search(SPACE, evaluate, refines=False)
    assert found.best == (lane(4, batch_size=16),)
    assert found.reached.qps == 1000
    first, second, third, fourth, fifth, *_ = found.steps
    assert (first.at, first.taken) == (None, (lane(1),))
    assert [step.at for step in (second, third, fourth)] == [step.taken for step in (first, second, third)]
    assert second.candidates == ((lane(1, batch_size=8),), (lane(2),), (lane(2, batch_size=8),))
    assert [step.taken[0] for step in (second, third, fourth)] == [
        lane(2, batch_size=8), lane(3, batch_size=16), lane(4, batch_size=16),
    ]  # fmt: skip
    assert fifth.taken is None, "none of the three is better"
    assert {step.candidates[0][0].cores_per_worker for step in found.steps} == {1, 2}, "the best fell with two cores"
    assert len(asked) == len(set(asked)) == found.evaluations == len(found.tried)


def test_op_parallelism_goes_on_while_the_best_grows():
    found = gradient_search(SPACE, hill(lane(2, cores=3, batch_size=64)), refines=False)
    assert found.best == (lane(2, cores=3, batch_size=64),)
    assert max(step.candidates[0][0].cores_per_worker for step in found.steps) == 4
    begun = [step.taken for step in found.steps if step.at is None]
    assert begun == [(lane(1, cores=cores),) for cores in (1, 2, 3, 4)], "each time from the fewest and the smallest"


def test_cores_bound_what_is_tried():
    found = gradient_search(SPACE, hill(lane(99, batch_size=9999)))
    assert found.best == (lane(8, batch_size=128),)
    assert all(each.cores <= 8 for tried in found.tried for each in tried)


def test_a_pipeline_comes_to_equilibrium():
    """Throughput is that of the slower side: 3 of 8 cores for the SparseNet would be 3/1, 5/1.7."""

    def evaluate(configuration):
        (here,) = configuration
        return Reached(min(100 * here.workers * here.cores_per_worker, 100 * here.dense_workers / 1.7))

    space = replace(SPACE, placements=(PIPELINE,))
    found = gradient_search(space, evaluate)
    assert found.reached == exhaustive_search(space, evaluate).reached
    assert (found.best[0].workers * found.best[0].cores_per_worker, found.best[0].dense_workers) == (3, 5)


def test_an_allotment_that_overshot_is_refined():
    """With few workers larger batches are the better ones, with many they are late."""

    def evaluate(configuration):
        (here,) = configuration
        late = here.batch_size * here.workers > 256
        return Reached(0.0 if late else here.workers + math.log2(here.batch_size))

    exact, refined = (gradient_search(SPACE, evaluate, refines=refines).reached.qps for refines in (False, True))
    assert exact < refined == exhaustive_search(SPACE, evaluate).reached.qps == 13


def test_the_way_out_of_what_is_too_late_is_towards_less_latency():
    def evaluate(configuration):
        (here,) = configuration
        latency_ms = 1000 / (here.workers * here.batch_size)
        return Reached(0.0 if latency_ms > 10 else here.workers, 1.0, latency_ms)

    assert gradient_search(SPACE, evaluate).reached.qps == 8


def test_an_sla_out_of_reach_leaves_what_came_closest():
    def evaluate(configuration):
        (here,) = configuration
        return Reached(0.0, 1.0, 5000 / (here.workers * here.batch_size))

    found = gradient_search(SPACE, evaluate)
    assert found.best is None
    assert found.closest == (lane(8, batch_size=128),)
    assert found.reached.tail_latency_ms == 5000 / 1024


def test_power_is_a_limit():
    best = hill(lane(8, batch_size=32))
    found = gradient_search(SPACE, best, Limits(power_budget_watts=100))
    assert found.best == (lane(5, batch_size=32),)
    assert found.reached.power_watts == 100
    over = gradient_search(SPACE, best, Limits(power_budget_watts=10))
    assert over.best is None
    assert over.closest[0].cores == 1


def test_of_what_is_as_far_over_the_budget_the_one_that_reaches_more_is_closest():
    """However late it is under the lightest load: what draws more stays further from the budget."""
    answers = {1: Reached(73.0, 20.0, 5.0), 2: Reached(117.0, 20.0, 9.0), 3: Reached(900.0, 21.0, 1.0)}
    found = exhaustive_search(
        ParallelismSpace(3, (4,), (MODEL,)),
        lambda configuration: answers.get(configuration[0].workers * configuration[0].cores_per_worker),
        Limits(power_budget_watts=1.0),
    )
    assert (found.best, found.closest, found.reached.qps) == (None, (lane(2),), 117.0)


def test_deeprecsys_takes_larger_batches_until_throughput_falls():
    found = deeprecsys_search(SPACE, hill(lane(2, batch_size=16)))
    every = [(lane(8, batch_size=size),) for size in (4, 8, 16, 32)]
    assert list(found.tried) == every
    assert [(step.at, step.taken) for step in found.steps] == [
        (None, every[0]), (every[0], every[1]), (every[1], every[2]), (every[2], None),
    ]  # fmt: skip


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(2, 9))
def test_nothing_is_proposed_that_deeprecsys_beats(seed, cores):
    """On whatever surface: its hill climbing is one of the starts."""
    space = ParallelismSpace(cores, BATCHES, (MODEL, PIPELINE))

    def evaluate(configuration):
        (here,) = configuration
        key = [seed, here.workers, here.cores_per_worker, here.batch_size, here.dense_workers]
        return Reached(float(np.random.default_rng(key).choice([0, 1, 2, 3, 5, 8])), 1.0, 1.0)

    ours, theirs = gradient_search(space, evaluate), deeprecsys_search(space, evaluate)
    assert ours.reached.qps >= theirs.reached.qps
    assert ours.evaluations <= space.size()


def test_candidates_within_the_noise_are_asked_for_again_and_compared_by_medians():
    space, limits = ParallelismSpace(2, (4,), (MODEL,)), Limits(noise=0.05, runs=3)
    alone = deeprecsys_search(space, varying({lane(2): [99.0, 102.0, 103.0]}), limits)
    assert (alone.evaluations, alone.reached.qps) == (1, 99.0), "there is nothing to compare it with"
    found = gradient_search(space, varying({lane(1): [101.0, 100.0, 99.0], lane(2): [99.0, 102.0, 103.0]}), limits)
    assert found.best == (lane(2),)
    assert (found.reached.qps, found.tried[(lane(1),)].qps) == (102.0, 100.0)
    assert found.evaluations == 7, "those of one worker of two cores, which is far worse, are not repeated"


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_candidates_whose_intervals_overlap_are_within_the_noise_too(noise):
    """90 and 100 are further apart than the noise, but neither measurement is sure of that."""

    def evaluate(configuration):
        (here,) = configuration
        qps = {lane(1): 90.0, lane(2): 100.0}.get(here, 1.0)
        return Reached(qps, 10.0, 5.0, 0.9 * qps, 1.2 * qps)

    ask, asked = counted(evaluate)
    found = gradient_search(ParallelismSpace(2, (4,), (MODEL,)), ask, Limits(noise=noise, runs=3))
    assert [asked.count((lane(count),)) for count in (1, 2)] == [3, 3]
    assert asked.count((lane(1, cores=2),)) == 1, "far worse"
    assert (found.best, found.reached.low_qps, found.reached.high_qps) == ((lane(2),), 90.0, 120.0)


class ByCores:
    """Predicts that what has more cores reaches more."""

    def __call__(self, configuration):
        return Reached(1.0 * configuration[0].cores)

    def narrow(self, configuration):
        yield 1.0 * configuration[0].cores
        return self(configuration)


EVERY_SEARCH = {
    "hercules": gradient_search,
    "algorithm-1": lambda space, ask, limits: gradient_search(space, ask, limits, refines=False),
    "deeprecsys": deeprecsys_search,
    "exhaustive": exhaustive_search,
    "random": lambda space, ask, limits: random_search(space, ask, 99, 0, limits),
    "guided": lambda space, ask, limits: guided_search(space, ByCores(), ask, limits),
}


def stalled(best, *runs, alone_ms=8.9):
    """The more cores and the larger batches, the better; `best` reaches 340, but before that what `runs` say."""
    left = iter(runs)

    def evaluate(configuration):
        (here,) = configuration
        if here == best:
            return next(left, Reached(340.0, 50.0, 12.0))
        return Reached(10.0 * here.workers + math.log2(here.batch_size), 50.0, alone_ms)

    return evaluate


@pytest.mark.parametrize("search", EVERY_SEARCH.values(), ids=EVERY_SEARCH)
@pytest.mark.parametrize("runs", [2, 3])
@pytest.mark.parametrize("lost", [Reached(0.0, 20.0, 8.9, 0.0, 0.0), Reached(340.0, 90.1, 12.0)])
def test_one_stall_or_one_reading_just_over_the_budget_does_not_lose_the_best(search, runs, lost):
    """It reached nothing though a large query alone is in time; or it drew 90.1 W where 90 are allowed."""
    space, best = ParallelismSpace(2, (4, 8), (MODEL,)), lane(2, batch_size=8)
    ask, asked = counted(stalled(best, lost))
    found = search(space, ask, Limits(90.0, noise=0.06, runs=runs, latency_ms=20.0))
    assert found.best == (best,)
    assert found.reached.qps == pytest.approx(340.0 * (0.97 if runs == 2 and not lost.qps else 1.0))
    assert found.reached.runs_of_nothing == (lost.qps == 0)
    assert found.reached.power_watts <= 90.0
    assert asked.count((best,)) == runs
    assert len(asked) - len(set(asked)) == runs - 1, "what nobody doubts is not asked for again"


@pytest.mark.parametrize(("runs", "asked_for"), [(1, 1), (2, 2), (3, 2), (5, 3)])
def test_what_is_rejected_is_asked_for_until_most_runs_agree(runs, asked_for):
    best = lane(2, batch_size=8)
    ask, asked = counted(stalled(best, *[Reached(0.0, 20.0, 8.9)] * 9))
    found = exhaustive_search(ParallelismSpace(2, (4, 8), (MODEL,)), ask, Limits(runs=runs, latency_ms=20.0))
    assert found.best == (lane(2),)
    assert found.tried[best,] == Reached(0.0, 20.0, 8.9)
    assert asked.count((best,)) == asked_for


@pytest.mark.parametrize(
    ("lost", "limits"),
    [
        (Reached(0.0, 20.0, 20.1), Limits(noise=0.06, latency_ms=20.0)),
        (Reached(0.0, 20.0, 8.9), Limits(noise=0.06)),
        (Reached(340.0, 96.0), Limits(90.0, noise=0.06, latency_ms=20.0)),
        (Reached(340.0, 90.1), Limits(90.0, latency_ms=20.0)),
    ],
)
def test_what_is_out_of_reach_for_certain_is_asked_for_once(lost, limits):
    """Late even alone, or over the budget by more than the noise; models have neither stalls nor noise."""
    best = lane(2, batch_size=8)
    ask, asked = counted(stalled(best, lost))
    assert exhaustive_search(ParallelismSpace(2, (4, 8), (MODEL,)), ask, limits).best == (lane(2),)
    assert asked.count((best,)) == 1


def test_runs_that_reached_nothing_count_in_the_median_of_throughput_alone():
    """A run of nothing has another latency, and draws less: all but the throughput is of those that are like it."""

    def told(*runs):
        evaluate = stalled(lane(1), *runs)
        limits = Limits(noise=0.06, latency_ms=20.0)
        return deeprecsys_search(ParallelismSpace(1, (4,), (MODEL,)), evaluate, limits).reached

    nothing, some = Reached(0.0, 20.0, 8.9, 0.0, 7.0), Reached(330.0, 48.0, 13.0, 320.0, 335.0)
    better = replace(some, qps=340.0, power_watts=50.0)
    assert told(nothing, some, better) == replace(some, power_watts=49.0, runs_of_nothing=1)
    assert told(some) == some
    assert told(nothing, some, nothing) == nothing


def qps_of(*runs, noise=0.06):
    return typical([Reached(qps, 10.0) for qps in runs], noise).qps


@given(st.lists(st.sampled_from([0.0, 17.0, 90.0, 97.0, 100.0, 104.0]), min_size=1, max_size=5), st.data())
def test_a_run_that_reaches_more_never_makes_it_less(runs, data):
    place = data.draw(st.integers(0, len(runs) - 1))
    more = runs[place] + data.draw(st.sampled_from([0.5, 3.0, 17.0, 300.0]))
    noise = data.draw(st.sampled_from([0.0, 0.06, 2.0]))
    less_told = qps_of(*runs, noise=noise)
    assert less_told <= qps_of(*runs[:place], more, *runs[place + 1 :], noise=noise)
    assert min(runs) <= less_told <= max(runs)


def test_a_run_that_was_disturbed_costs_no_more_than_noise_as_long_as_another_is_as_good():
    assert qps_of(100.0, 96.0) == 98.0, "which of them was lucky is not known"
    assert qps_of(100.0, 0.0) == qps_of(100.0, 17.0) == qps_of(17.0, 100.0) == pytest.approx(97.0)
    assert qps_of(300.0, 20.0, 0.0) == qps_of(300.0, 20.0, 10.0) == 20.0
    assert qps_of(300.0, 290.0, 0.0) == 290.0
    assert qps_of(300.0, 0.0, 0.0) == 0.0


def test_the_interval_of_several_runs_holds_their_throughput():
    one, none = Reached(100.0, 10.0, 5.0, 99.0, 101.0), Reached(0.0, 5.0, 5.0, 0.0, 7.0)
    told = typical([one, none], 0.06)
    assert (told.low_qps, told.qps, told.high_qps, told.runs_of_nothing) == (told.qps, pytest.approx(97.0), 101.0, 1)


def held(found, asked, others, runs):
    """What comes of a search that was told `asked` when others were measured; `runs` is what is measured from then."""
    ask, again = counted(varying({each: list(values) for each, values in runs.items()}))

    def told(values):
        return {(each,): [Reached(qps, 10.0) for qps in of] for each, of in values.items()}

    return held_against(found, told(asked), told(others), ask, Limits(noise=0.06)), [each for (each,) in again]


def test_what_was_measured_beside_a_search_and_beats_its_best_is_held_against_it():
    """The machine stalled while the better one was measured, or the search did not come by it."""
    asked = {lane(1): [114.0], lane(2): [50.0]}
    found = gradient_search(ParallelismSpace(2, (4,), (MODEL,)), varying(asked), refines=False)
    again = {lane(1): [116.0, 112.0], lane(2): [340.0, 350.0], lane(2, batch_size=8): [355.0, 90.0, 80.0]}
    asked = {each: [run.qps for run in [found.tried[each,]]] for (each,) in found.tried}
    others = {lane(2): [50.0, 360.0, 359.0], lane(2, batch_size=8): [370.0], lane(1, batch_size=8): [117.0]}
    best, measured = held(found, asked, others, again)
    assert (best.best, best.reached.qps) == ((lane(2),), 340.0)
    assert measured == [lane(2, batch_size=8)] * 3 + [lane(1)] * 2 + [lane(2)] * 2, "three runs of each; no more"
    assert best.steps[: len(found.steps)] == found.steps
    assert best.steps[len(found.steps) :] == (
        Step((lane(1),), ((lane(2, batch_size=8),),), None),
        Step((lane(1),), ((lane(2),),), (lane(2),)),
    )
    assert best.evaluations == found.evaluations + len(measured)


def test_what_was_measured_beside_a_search_and_is_no_better_leaves_it_as_it_is():
    asked = {lane(1): [114.0]}
    found = deeprecsys_search(ParallelismSpace(1, (4,), (MODEL,)), varying(asked))
    for others in ({lane(2): [119.0]}, {lane(1): [114.0, 900.0, 900.0]}, {lane(2): [90.0]}, {lane(2): [0.0]}, {}):
        best, measured = held(found, asked, others, {})
        assert best is found
        assert not measured


def test_where_a_search_found_nothing_what_keeps_the_limits_is_asked_for_alone():
    found = deeprecsys_search(ParallelismSpace(1, (4,), (MODEL,)), lambda _: Reached(0.0, 10.0))
    best, measured = held(found, {lane(1): [0.0]}, {lane(2): [60.0]}, {lane(2): [61.0, 62.0, 63.0]})
    assert (best.best, best.reached.qps) == ((lane(2),), 62.0)
    assert measured == [lane(2)] * 3


def test_how_many_are_held_against_the_best_is_bounded():
    asked = {lane(1): [100.0]}
    found = deeprecsys_search(ParallelismSpace(1, (4,), (MODEL,)), varying(asked))
    lucky = {lane(count): [200.0 + count] for count in range(2, 9)}
    best, measured = held(found, asked, lucky, {lane(1): [100.0] * 3})
    assert best.best == (lane(1),)
    assert list(dict.fromkeys(measured)) == [lane(8), lane(1), lane(7), lane(6)]
    assert len(measured) == MOST_RIVALS * 3 + 2


def test_what_the_placements_end_at_is_told_apart():
    """A pipeline that was lucky once was recorded before a model-based split that is better."""
    runs = iter([102.0, 88.0, 90.0])

    def evaluate(configuration):
        return Reached(next(runs) if configuration[0].placement is PIPELINE else 100.0)

    found = gradient_search(ParallelismSpace(2, (4,), (MODEL, PIPELINE)), evaluate, Limits(noise=0.06))
    assert found.closest[0].placement is MODEL


def test_a_step_that_two_rules_take_is_asked_for_once():
    evaluate, asked = counted(lambda here: Reached(1000.0 if here[0].fused_items else 100.0))
    gradient_search(ParallelismSpace(1, (4,), (HOT,), (1,), (0, 4096)), evaluate, Limits(noise=0.1), refines=False)
    assert len(asked) == len(set(asked)) == 2, "to fuse more, and to fuse the most"


LUCKY = ParallelismSpace(3, (4, 8), (MODEL,))


@pytest.mark.parametrize(
    "search", [exhaustive_search, lambda space, ask, limits: random_search(space, ask, 99, 0, limits)]
)
def test_a_sweep_tells_its_leaders_apart_at_its_end(search):
    """The best by one run was lucky once."""
    runs = {lane(3): [105.0, 98.0, 80.0], lane(2): [100.0, 101.0, 102.0]}
    ask, asked = counted(varying(runs))
    found = search(LUCKY, ask, Limits(noise=0.06, runs=3))
    assert (found.best, found.reached.qps) == ((lane(2),), 101.0)
    assert len(set(asked)) == LUCKY.size()
    assert found.evaluations == len(asked) == LUCKY.size() + 4, "no others"
    assert asked[: LUCKY.size()] == list(dict.fromkeys(asked)), "not before everything was tried"
    once = search(LUCKY, varying({each: list(values) for each, values in runs.items()}), Limits(noise=0.06, runs=1))
    assert (once.best, once.evaluations) == ((lane(3),), LUCKY.size())


def test_how_often_leaders_are_asked_for_again_is_bounded():
    ask, asked = counted(lambda _: Reached(100.0, 1.0, 5.0, 10.0, 1000.0))
    found = exhaustive_search(SPACE, ask, Limits(noise=0.06, runs=3))
    assert found.evaluations == len(asked) <= SPACE.size() + LEADERS * 3
    assert len([one for one in set(asked) if asked.count(one) > 1]) <= LEADERS


def test_where_what_was_measured_is_from_is_told_of_several_runs():
    def told(*sources):
        left = [Reached(100.0, 10.0 + i, 5.0, power_source=source, power_estimated=source != "RAPL",
                        bandwidth_bytes_per_s=None if source is None else 1e9 * i, bandwidth_estimated=i > 1,
                        cpu_share=None if source is None else 0.5 + 0.1 * i)
                for i, source in enumerate(sources)]  # fmt: skip
        runs = iter(left)
        alike = ParallelismSpace(2, (4,), (MODEL,))
        answers = {(lane(1),): runs}
        found = gradient_search(
            alike, lambda one: next(answers.get(one, iter([Reached(99.0)])), Reached(99.0)), Limits(noise=0.05, runs=3)
        )
        reached = found.tried[(lane(1),)]
        traffic = reached.bandwidth_bytes_per_s, reached.bandwidth_estimated
        return reached.power_source, reached.power_estimated, *traffic, reached.cpu_share

    assert told("RAPL", "RAPL", "RAPL") == ("RAPL", False, 1e9, True, 0.6)
    assert told("RAPL", "use", "RAPL") == ("RAPL; and use", True, 1e9, True, 0.6)
    assert told("RAPL", None, "RAPL") == (None, True, None, True, None)


def varying(runs):
    """What each lane reaches in its first run, its second, and so on; all others are far worse."""
    left = {each: iter(values) for each, values in runs.items()}

    def evaluate(configuration):
        (here,) = configuration
        return Reached(next(left[here]) if here in left else 1.0, 10.0)

    return evaluate


@pytest.mark.parametrize("refines", [False, True])
def test_the_accelerator_is_searched_after_each_step_on_the_host(refines):
    """It takes what the host brings: two co-located workers and the largest batches are best, once it is worth it. More
    cores per worker, with which the accelerator is searched anew, are none."""

    def evaluate(configuration):
        here = configuration[0]
        device = min(here.dense_workers, 2) * (3 if here.fused_items == 4096 else 1)
        return Reached(min(here.workers, device) - 0.01 * here.cores)

    space = ParallelismSpace(8, (4, 8), (SPARSE,), (1, 2, 3), (0, 1024, 4096))
    found = gradient_search(space, evaluate, refines=refines)
    assert found.best is not None
    (main,) = found.best[:1]
    assert (main.workers, main.cores_per_worker, main.dense_workers, main.fused_items) == (6, 1, 2, 4096)


def test_cores_that_an_accelerator_leaves_run_the_model():
    def evaluate(configuration):
        return Reached(sum(100.0 if each.placement.on_accelerator else each.workers for each in configuration), 1.0)

    space = ParallelismSpace(6, (4,), (HOT,), (1,), (0, 1024))
    found = gradient_search(space, evaluate)
    assert found.best is not None
    main, beside = found.best
    assert (main.placement, main.cores, beside.placement, beside.workers) == (HOT, 1, MODEL, 5)


def test_cores_that_an_accelerator_leaves_run_a_pipeline_where_that_reaches_more():
    """As far as there are two of them."""

    def evaluate(configuration):
        return Reached(100.0 + sum(each.dense_workers * each.workers for each in configuration[1:]), 1.0)

    for cores, dense in ((5, 2), (2, None)):
        found = gradient_search(ParallelismSpace(cores, (4,), (HOT,), (1,), (0,)), evaluate, refines=False)
        assert found.best is not None
        beside = {each.placement for tried in found.tried for each in tried[1:]}
        assert beside == ({MODEL, PIPELINE} if dense else {MODEL})
        assert [each.dense_workers for each in found.best[1:] if each.placement is PIPELINE] == (
            [dense] if dense else []
        )


@pytest.mark.parametrize("search", [gradient_search, baymax_search])
@pytest.mark.parametrize("reached", [Reached(0.0, 10.0, 90.0), Reached(100.0, 60.0)])
def test_beside_an_accelerator_that_keeps_no_limit_nothing_is_tried(search, reached):
    """Late, or over the budget alone: it does not get better with more beside it."""
    found = search(ParallelismSpace(4, (4,), (HOT,), (1,), (0,)), lambda _: reached, Limits(power_budget_watts=50.0))
    assert found.best is None
    assert all(len(tried) == 1 for tried in found.tried)


def test_baymax_co_locates_one_query_at_a_time():
    def evaluate(configuration):
        main, *beside = configuration
        return Reached(min(main.dense_workers, 2) + 0.1 * sum(each.workers for each in beside) - main.fused_items)

    space = ParallelismSpace(6, (4, 8), (MODEL, HOT), (1, 2, 3, 4))
    found = baymax_search(space, evaluate)
    assert found.best is not None
    main, beside = found.best
    assert (main.dense_workers, main.fused_items, beside.workers, beside.cores_per_worker) == (2, 0, 4, 1)
    assert max(tried[0].dense_workers for tried in found.tried) == 3, "it stopped when one more did not help"
    with pytest.raises(PlanningError, match="no placement on one"):
        baymax_search(SPACE, evaluate)


@pytest.mark.parametrize("placements", [(SPARSE,), (SPARSE, MODEL), (HOT, SPARSE), (SPARSE, HOT)])
def test_baymax_has_the_whole_model_on_the_accelerator_wherever_that_placement_stands(placements):
    space = ParallelismSpace(4, (4, 8), placements, (1, 2))
    found = baymax_search(space, lambda configuration: Reached(1.0 + configuration[0].dense_workers))
    assert found.best is not None
    main = found.best[0]
    expected = (HOT, 0) if HOT in placements else (SPARSE, 1)
    assert (main.placement, main.workers, main.dense_workers) == (*expected, 2)


def test_every_lane_is_tried_once_or_some_of_them_at_random():
    space = ParallelismSpace(5, (4, 16), tuple(Placement), (1, 2), (0, 256))
    every = [each for placement in Placement for each in space.lanes(placement)]
    found = exhaustive_search(space, lambda configuration: Reached(float(every.index(configuration[0]))))
    assert (found.best, found.evaluations) == ((every[-1],), len(every))
    some = [random_search(space, hill(every[0]), 20, seed) for seed in (1, 1, 2)]
    assert [found.evaluations for found in some] == [20, 20, 20]
    assert list(some[0].tried) == list(some[1].tried) != list(some[2].tried)


@pytest.mark.parametrize(
    "search", [gradient_search, exhaustive_search, lambda space, evaluate: random_search(space, evaluate, 5, 1)]
)
def test_a_placement_that_the_cores_do_not_suffice_for_is_refused(search):
    with pytest.raises(PlanningError, match="1 cores are too few for pipeline-on-host"):
        search(replace(SPACE, cores=1, placements=(PIPELINE,)), hill(lane(1)))


@pytest.mark.parametrize("search", [gradient_search, deeprecsys_search, exhaustive_search])
def test_a_space_of_one_configuration_has_a_best_one(search):
    space = ParallelismSpace(1, (64,), (Placement.MODEL_ON_HOST,))
    found = search(space, lambda _: Reached(5.0, 1.0))
    assert (found.best, found.evaluations) == ((Lane(Placement.MODEL_ON_HOST, 1, 1, 64),), 1)
    pipeline = ParallelismSpace(2, (64,), (Placement.PIPELINE_ON_HOST,))
    assert gradient_search(pipeline, lambda _: Reached(5.0, 1.0)).evaluations == 1
