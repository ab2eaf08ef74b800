"""hercules-server: what it tells of given gains, and a search of an analytic server.

Both searches of a server: what is searched, and what is measured anew.
"""

import json
from dataclasses import asdict

import pytest

from hebe.planning.server_split.search import Limits, Reached
from hebe.server_configuration import Lane, Placement
from hebe.spec import SlaTarget
from hebe_lab.baselines.gain_by_cause import GainByCause
from hebe_lab.studies.hercules import server as hercules_server
from hebe_lab.studies.hercules.fleet import ENTRIES
from hebe_lab.studies.hercules.server import (
    EFFORTS,
    Effort,
    Measured,
    Modelled,
    both_searches,
    searched,
    space_of,
    split_words,
    told,
)
from tests.lab.studies.study_page import page_of

SLA = SlaTarget(20.0)


GAIN = GainByCause(100.0, 1.2, 1.5, 1.0, 1.0)


EFFORT = Effort(("RMC1",), 1 << 20, (64, 256), accelerator=False, repeats=2)


def test_what_given_gains_come_to():
    modelled = {(name, kind): Modelled(GAIN, 180.0, "best", 9) for name in ENTRIES for kind in ("T2", "T7")}
    modelled["RMC2", "T7"] = Modelled(None, 50.0, "best", 9)
    here = {
        "RMC1": Measured(SLA, GAIN, "simple", "best", [100.0, 110.0, 90.0], [150.0, 140.0, 160.0], 20),
        "DIN": Measured(SLA, None, "simple", "simple", [0.0], [0.0], 20),
        "DIEN": Measured(SLA, GAIN, "simple", "best", [0.0, 90.0], [150.0, 150.0], 20),
        "RMC3": Measured(SLA, GAIN, "simple", "simple", [90.0, 110.0], [90.0, 110.0], 20),
    }
    result = told(modelled, here, EFFORT)
    values = {figure.name: figure for figure in result.figures}
    assert values["hercules.server.t2.rmc1"].value == pytest.approx(1.8)
    assert (values["hercules.server.t2.rmc1"].paper, values["hercules.server.t2.din"].paper) == (1.82, None)
    assert "hercules.server.t7.rmc2" not in values, "the baseline keeps no target there"
    live = values["hercules.server.live.rmc1"]
    assert (live.value, live.runs) == (pytest.approx(1.5), 3)
    assert live.low <= 1.5 <= live.high
    same = values["hercules.server.live.rmc3"]
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0), "one configuration, however its runs differ"
    assert same.note == "simple, the baseline's own, within 20 ms"
    assert not {"hercules.server.live.din", "hercules.server.live.dien"} & set(values)
    by_cause, measured = result.tables
    assert by_cause.rows[0][:7] == ["RMC1", "T2", pytest.approx(1.8), 1.2, 1.5, 1.0, 1.0]
    assert measured.rows[1][2:7] == ["out of reach", None, None, None, None]
    assert measured.rows[2][2:5] == ["not reached again", 1.2, 1.5]
    assert measured.rows[3][2] == "1, the baseline's"
    page = page_of(hercules_server, result)
    assert page.count("<svg") == 3
    assert "no baseline" in page


@pytest.mark.parametrize("gain", [GAIN, None])
def test_what_was_measured_comes_back_from_disk_as_it_was(gain):
    measured = Measured(SLA, gain, "simple", "best", [100.0, 110.0], [150.0, 140.0], 20, "Power is a guess.")
    assert Measured.from_dict(json.loads(json.dumps(asdict(measured)))) == measured


def test_the_analytic_t2_gains_by_op_parallelism_and_pipelines_alone():
    found = searched(("RMC1", "T2", True))
    assert found.gain.op_parallelism > 1.0 < found.gain.pipeline
    assert found.gain.accelerator == found.gain.fusion == 1.0
    assert found.qps == pytest.approx(found.gain.total * found.gain.baseline_qps)


def test_a_split_in_words():
    lanes = (
        Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, dense_workers=2, fused_items=512),
        Lane(Placement.MODEL_ON_HOST, 3, 2, 64),
    )
    assert split_words(lanes) == "hot-sparse-on-accelerator k 2 f 512, model-on-host 3 x 2 d 64"


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
