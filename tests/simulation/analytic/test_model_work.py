import subprocess
import sys

import numpy as np
import pytest

from hebe.models import catalog
from hebe.simulation.analytic.model_work import Gather, model_work


@pytest.mark.parametrize("row_bytes", [4, 16, 40, 64, 68, 96, 128, 200, 1024])
def test_whole_cache_lines_are_moved(row_bytes):
    starts = row_bytes * np.arange(64)
    lines = (starts + row_bytes - 1) // 64 - starts // 64 + 1
    gather = Gather("f", "t", 64, row_bytes, 3, row_bytes, True)
    assert gather.line_bytes_per_row == 64 * lines.mean()
    assert gather.bytes_per_item == 3 * 64 * lines.mean()


def test_a_dlrms_bytes():
    spec = catalog.entry("dlrm-rmc1")
    work = model_work(spec)
    assert work.gather_bytes == 10 * 80 * 128
    assert work.pooled_bytes == 10 * 32 * 4
    assert work.key_bytes == 10 * 80 * 8
    assert work.dense_input_bytes == 256 * 4
    assert work.table_bytes == spec.table_bytes
    assert all(gather.reduces for gather in work.gathers)


def test_rows_handed_over_or_alone_are_not_reduced():
    din = model_work(catalog.entry("din", scale=0.01))
    assert not any(gather.reduces for gather in din.gathers)
    history = next(gather for gather in din.gathers if gather.feature == "item_history")
    assert history.output_bytes == 100 * 32 * 4
    assert not any(gather.reduces for gather in model_work(catalog.entry("mt-wnd", scale=0.01)).gathers)


def test_the_analytic_servers_need_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from hebe.models import catalog\n"
        "from hebe.simulation.analytic import configuration_search, model_work\n"
        "print(round(model_work.model_work(catalog.entry('dlrm-rmc3')).flops))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2882368"
