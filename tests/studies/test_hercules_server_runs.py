"""Both searches of a server: what is searched, and what is measured anew."""

import pytest

from hebe.planning.parallelism import Limits, Reached
from hebe.server_configuration import Lane, Placement
from hebe.spec import SlaTarget
from hebe.studies.hercules_server import EFFORTS, Effort, split_words
from hebe.studies.hercules_server_runs import both_searches, space_of

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
        ended = both_searches(space, reaching(there), Limits(), SLA)
        measured = ended(lambda configurations: [[1.0] for _ in configurations])
        assert measured.baseline.startswith(baseline)
        assert measured.gain.baseline_qps == max(there, 100.0)


@pytest.mark.parametrize("pipelined", [True, False])
def test_both_winners_are_measured_anew_together(pipelined):
    def evaluate(configuration):
        (lane,) = configuration
        if lane.placement is Placement.PIPELINE_ON_HOST:
            return Reached(150.0 if pipelined else 50.0)
        return Reached(50.0 * lane.workers + lane.batch_size / 100)

    ended = both_searches(space_of(2, EFFORT), evaluate, Limits(), SLA)
    asked = []

    def repeated(configurations):
        asked.append(configurations)
        return [[100.0, 101.0], [140.0, 139.0]][: len(configurations)]

    measured = ended(repeated)
    simple = (Lane(Placement.MODEL_ON_HOST, 2, 1, 256),)
    assert measured.baseline == split_words(simple)
    if pipelined:
        assert len(asked[0]) == 2
        assert measured.gain.pipeline == pytest.approx(150.0 / 102.56)
        assert measured.ratio[0] == pytest.approx(139.5 / 100.5)
    else:
        assert asked == [[simple]]
        assert (measured.ratio[0], measured.gain.total) == (1.0, 1.0)
