"""Both searches of a server: what is searched, and what is measured anew."""

import pytest

from hebe.planning.server_split.search import Limits, Reached
from hebe.server_configuration import Lane, Placement
from hebe.spec import SlaTarget
from hebe_lab.studies.hercules.server import EFFORTS, Effort, both_searches, space_of, split_words

SLA = SlaTarget(20.0)
EFFORT = Effort(("RMC1",), 1 << 20, (64, 256), accelerator=False, repeats=2)


def test_a_machine_of_one_core_has_no_pipeline_and_full_effort_has_the_accelerator():
    assert space_of(1, EFFORT).placements == (Placement.MODEL_ON_HOST,)
    assert Placement.PIPELINE_ON_HOST in space_of(2, EFFORT).placements
    assert not any(placement.on_accelerator for placement in space_of(2, EFFORT).placements)
    assert any(placement.on_accelerator for placement in space_of(2, EFFORTS[2]).placements)


def test_with_an_accelerator_the_baseline_is_the_better_one_of_deeprecsys_and_baymax():
    space = space_of(2, EFFORTS[2])

    def reaching(qps_there):
        def evaluate(configuration):
            return Reached(qps_there if configuration[0].placement.on_accelerator else 100.0)

        return evaluate

    for there, baseline in ((50.0, "model-on-host"), (200.0, "hot-sparse-on-accelerator")):
        measured = both_searches(space, reaching(there), Limits(), SLA, 1)
        assert measured.baseline.startswith(baseline)
        assert measured.gain.baseline_qps == max(there, 100.0)


def measured_where(pipelines_reach):
    """By a machine on which pipelines reach so much, one measurement after the other, and the last again and again."""
    asked = []

    def evaluate(configuration):
        asked.append(configuration)
        (lane,) = configuration
        if lane.placement is Placement.PIPELINE_ON_HOST:
            times = sum(each[0].placement is Placement.PIPELINE_ON_HOST for each in asked)
            return Reached(pipelines_reach[min(times, len(pipelines_reach)) - 1])
        return Reached(50.0 * lane.workers + lane.batch_size / 100)

    return both_searches(space_of(2, EFFORT), evaluate, Limits(), SLA, EFFORT.repeats)


BASELINE = split_words((Lane(Placement.MODEL_ON_HOST, 2, 1, 256),))


def test_what_the_search_ends_at_is_measured_anew_beside_the_baseline():
    measured = measured_where([150.0])
    assert (measured.baseline, measured.best.split()[0]) == (BASELINE, "pipeline-on-host")
    assert measured.gain.pipeline == pytest.approx(150.0 / 102.56)
    assert measured.baseline_qps == [102.56] * EFFORT.repeats
    assert measured.best_qps == [150.0] * EFFORT.repeats


def test_what_is_no_better_than_the_baseline_is_not_taken():
    assert measured_where([50.0]).best == BASELINE


def test_what_was_only_lucky_is_not_taken():
    measured = measured_where([150.0, 150.0, 90.0])
    assert measured.gain.total > 1.0
    assert (measured.best, measured.ratio[0]) == (BASELINE, 1.0)
