"""Where CUDA is, the kernel runs on the GPU; elsewhere Triton interprets it, in a process of its own, since what it
reads of the environment holds for the whole process.
"""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.kernels.hot_rows import add_hot_rows_gpu
from hebe.kernels.hot_rows.add_hot_rows import add_hot_rows, add_hot_rows_reference
from hebe.kernels.hot_rows.add_hot_rows_gpu import HotRowAdder
from hebe.kernels.hot_rows.hot_keys import COLD
from hebe.kernels.lookup.feature_plan import (
    COPY,
    DIM,
    KEY_COLUMN,
    LOOKUPS,
    OUT_COLUMN,
    PLAN_COLUMNS,
    POOL_MEAN,
    POOL_SUM,
    ROWS,
    TABLE_START,
)
from hebe.kernels.lookup.row_format import RowFormat
from tests.servers.triton_process import triton_process

from .hot_rows import HotTables

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

FEATURES = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2, 50]),
        st.sampled_from([1, 3, 4, 7, 16, 32, 64, 100]),
        st.sampled_from([1, 2, 20]),
        st.sampled_from([POOL_SUM, POOL_MEAN, COPY]),
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def device():
    """Where the kernel can run: `device(function, *arguments)` returns what the function does."""
    with triton_process() as call:
        yield call


def adder_of(hot: HotTables, device: str = DEVICE) -> HotRowAdder:
    tables = torch.from_numpy(hot.tables).to(device)
    return HotRowAdder(tables, hot.plan, hot.row_format, number_columns=hot.columns, out_columns=hot.width)


def added(hot: HotTables, numbers: np.ndarray, out: np.ndarray) -> np.ndarray:
    whole = torch.from_numpy(out).to(DEVICE, copy=True)
    adder_of(hot).add(torch.from_numpy(numbers).to(DEVICE), whole)
    return whole.cpu().numpy()


def assert_agrees(device, hot: HotTables, items: int) -> None:
    numbers = hot.numbers(items)
    before = hot.rng.standard_normal((items + 1, hot.width)).astype(np.float32)
    expected = before.copy()
    add_hot_rows_reference(hot.tables, numbers, hot.plan, expected, hot.row_format)
    out = device(added, hot, numbers, before)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    untouched = expected == before
    assert np.array_equal(out[untouched], before[untouched])


@settings(max_examples=25)
@given(FEATURES, st.sampled_from([1, 2, 30]), st.integers(0, 2**32 - 1), st.sampled_from(list(RowFormat)))
def test_agrees_with_the_reference(device, features, items, seed, row_format):
    assert_agrees(device, HotTables(features, seed, row_format), items)


@pytest.mark.parametrize("row_format", list(RowFormat))
@pytest.mark.parametrize(
    "features",
    [
        pytest.param([(50, 64, 90, POOL_SUM), (50, 32, 33, POOL_MEAN), (50, 32, 1, POOL_SUM)], id="aligned"),
        pytest.param([(50, 1024, 3, POOL_MEAN), (50, 1, 9, POOL_SUM), (50, 130, 2, COPY)], id="wide and narrow"),
        pytest.param([(50, 4, 1000, POOL_MEAN), (50, 4, 300, POOL_SUM)], id="many lookups"),
        pytest.param([(50, 8, 1500, POOL_MEAN), *[(50, 8, 1, POOL_SUM)] * 3], id="more than are counted at once"),
    ],
)
def test_agrees_where_it_takes_several_tiles(device, features, row_format):
    assert_agrees(device, HotTables(features, 7, row_format), 3)


@pytest.mark.parametrize("pooling", [POOL_SUM, POOL_MEAN, COPY])
def test_what_has_no_hot_row_stays_to_the_bit(device, pooling):
    hot = HotTables([(10, 33, 4, pooling)])
    out = hot.rng.standard_normal((3, hot.width)).astype(np.float32)
    out[0, :2] = -0.0, np.nan
    numbers = np.full((3, 4), COLD)
    numbers[1], numbers[2] = -1, hot.plan[0, ROWS]
    assert np.array_equal(device(added, hot, numbers, out).view(np.int32), out.view(np.int32))


@pytest.mark.parametrize("row_format", list(RowFormat))
@pytest.mark.parametrize("dim", [3, 32])
def test_copied_rows_are_those_of_the_tables_to_the_bit(device, dim, row_format):
    hot = HotTables([(10, dim, 5, COPY), (10, dim, 1, POOL_MEAN)], row_format=row_format)
    numbers, out = hot.numbers(20), np.zeros((20, hot.width), np.float32)
    expected = out.copy()
    add_hot_rows_reference(hot.tables, numbers, hot.plan, expected, row_format)
    assert np.array_equal(device(added, hot, numbers, out), expected)


def test_means_are_weighed_by_the_rows_in_them(device):
    hot = HotTables([(2, 1, 5, POOL_MEAN)])
    rows = hot.tables.view(np.float32)
    out = np.array([[6.0]], np.float32)  # of three cold rows
    out = device(added, hot, np.array([[COLD, 1, COLD, -1, COLD]]), out)
    np.testing.assert_allclose(out, [[(18 + rows[1]) / 4]], rtol=1e-6)


def last_row_of_a_large_table() -> tuple[list[float], list[float]]:
    """What is added of the last row of a table beyond the first 2 GiB, and that row."""
    dim, rows, start = 64, 2**23 + 1, 256
    tables = torch.empty(start + rows * 4 * dim, dtype=torch.uint8, device=DEVICE)  # what is not touched takes nothing
    row = torch.arange(dim, dtype=torch.float32, device=DEVICE)
    tables[-4 * dim :] = row.view(torch.uint8)
    plan = np.zeros((1, PLAN_COLUMNS), np.int64)
    plan[0, [LOOKUPS, TABLE_START, DIM, ROWS]] = 2, start, dim, rows
    adder = HotRowAdder(tables, plan, number_columns=2, out_columns=dim)
    adder.warm_up()
    out = torch.zeros((1, dim), device=DEVICE)
    adder.add(torch.tensor([[rows - 1, rows]], device=DEVICE), out)
    return out[0].tolist(), row.tolist()


def test_tables_may_exceed_2_gib(device):
    out, row = device(last_row_of_a_large_table)
    assert out == row


def test_no_items_and_no_hot_rows_launch_nothing():
    adder = adder_of(HotTables([(10, 7, 3, POOL_SUM)]))
    adder.add(torch.zeros((0, 3), dtype=torch.int64, device=DEVICE), torch.zeros((2, 7), device=DEVICE))
    adder = adder_of(HotTables([(0, 7, 3, POOL_SUM), (0, 4, 3, COPY)]))
    adder.add(torch.zeros((2, 6), dtype=torch.int64, device=DEVICE), torch.zeros((2, 19), device=DEVICE))


@pytest.mark.parametrize("pooling", [POOL_SUM, POOL_MEAN, COPY])
@pytest.mark.parametrize("row_format", list(RowFormat))
def test_plans_fit_what_they_fit_on_the_host(row_format, pooling):
    hot = HotTables([(10, 4, 3, pooling), (10, 4, 3, pooling)], row_format=row_format)
    adder_of(hot, "cpu")
    plans = [hot.plan.copy() for _ in range(PLAN_COLUMNS)]
    for column, plan in enumerate(plans):
        plan[0, column] = -1
    for column in (KEY_COLUMN, LOOKUPS, TABLE_START, DIM, ROWS, OUT_COLUMN):
        plan = hot.plan.copy()
        plan[-1, column] += 1
        plans.append(plan)
    numbers, out = hot.numbers(1), np.zeros((1, hot.width), np.float32)
    for hot.plan in plans:
        with pytest.raises(ValueError, match="the plan reaches past"):
            add_hot_rows(hot.tables, numbers, hot.plan, out, row_format)
        with pytest.raises(ValueError, match="the plan reaches past"):
            adder_of(hot, "cpu")


def test_wrong_tables_are_errors():
    hot = HotTables([(10, 4, 3, POOL_SUM)])
    hot.tables, hot.plan[0, TABLE_START] = np.append(hot.tables, np.zeros(2, np.uint8)), 2
    with pytest.raises(ValueError, match="fp32 tables must begin at multiples of 4 bytes"):
        adder_of(hot, "cpu")
    with pytest.raises(ValueError, match=r"tables must be contiguous uint8 \[bytes\], not torch.float32 \[3\]"):
        HotRowAdder(torch.zeros(3), hot.plan, number_columns=3, out_columns=4)
    with pytest.raises(ValueError, match="the plan reaches past"):
        HotRowAdder(torch.zeros(3, dtype=torch.uint8), hot.plan[:, 1:], number_columns=3, out_columns=4)


def test_wrong_arrays_are_errors():
    adder = adder_of(HotTables([(10, 7, 3, POOL_SUM)]), "cpu")
    numbers, out = torch.zeros((4, 3), dtype=torch.int64), torch.zeros((4, 7))
    with pytest.raises(ValueError, match="4 items for an output of 2"):
        adder.add(numbers, out[:2])
    for wrong in (numbers.int(), numbers[:, 1:].contiguous(), numbers[::2], numbers[0]):
        with pytest.raises(ValueError, match=r"numbers must be contiguous torch.int64 \[n, 3\]"):
            adder.add(wrong, out)
    for wrong in (out.double(), out[:, 1:].contiguous(), torch.zeros((7, 4)).T):
        with pytest.raises(ValueError, match=r"out must be contiguous torch.float32 \[n, 7\]"):
            adder.add(numbers, wrong)
    with pytest.raises(ValueError, match="out are on meta, the hot rows on cpu"):
        adder.add(numbers, out.to("meta"))


def test_without_triton_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    add_hot_rows_gpu.kernel.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'hebe-serve\[gpu\]'"):
        adder_of(HotTables([(10, 7, 3, POOL_SUM)]), "cpu")


@pytest.mark.parametrize("row_format", list(RowFormat))
@pytest.mark.parametrize("dim", [33, 64])
def test_it_compiles_for_hopper(dim, row_format):
    """Without a GPU, and so that aligned rows are read 16 bytes at a time, or 4 behind the scale of an int8 row."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    adder = adder_of(HotTables([(10, dim, 80, POOL_MEAN), (10, dim, 1, POOL_SUM)], row_format=row_format), "cpu")
    kernel = add_hot_rows_gpu.kernel()
    signature = {**dict.fromkeys(kernel.arg_names, "i32"), **dict.fromkeys(adder.constants, "constexpr")}
    signature.update(tables="*u8", entries="*i64", numbers="*i64", out="*fp32")
    constants = {(kernel.arg_names.index(name),): value for name, value in adder.constants.items()}
    aligned = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in ("tables", "entries", "out")}
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, aligned),
        target=GPUTarget("cuda", 90, 32),
        options=add_hot_rows_gpu.OPTIONS,
    )
    assert compiled.asm["cubin"]
    assert ("st.global.v4.b32" in compiled.asm["ptx"]) == (dim == 64)
    if row_format is RowFormat.INT8:
        assert ("ld.global.b8" in compiled.asm["ptx"]) == (dim == 33)
    else:
        assert ("ld.global.v4.b32" in compiled.asm["ptx"]) == (dim == 64)
