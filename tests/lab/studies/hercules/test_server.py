"""hercules-server: what it tells of given gains, and a search of an analytic server."""

import json
from dataclasses import asdict

import pytest
from tests.lab.studies.study_page import page_of

from hebe.server_configuration import Lane, Placement
from hebe.spec import SlaTarget
from hebe_lab.baselines.gain_by_cause import GainByCause
from hebe_lab.studies.hercules import server as hercules_server
from hebe_lab.studies.hercules.fleet import ENTRIES
from hebe_lab.studies.hercules.server import Effort, Measured, Modelled, searched, split_words, told

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
