import numba
import numpy as np
import pytest

from hebe.kernels.compiled import OPTIONS
from hebe.kernels.primitives import vector


@pytest.fixture(scope="module", params=[True, False], ids=["by the machine", "by bits"])
def halves(request):
    """Kernels that widen and narrow arrays of 8n numbers, on a machine that converts float16 itself and on another."""
    before = vector._converts_halves
    if not request.param:
        vector._converts_halves = lambda _: False

    @numba.njit("(uint8[::1], float32[::1])", **OPTIONS)
    def widen(stored, out):
        for start in range(0, out.size, 8):
            vector.store(out, start, vector.load_float16(stored, 2 * start, 8))

    @numba.njit("(float32[::1], uint8[::1])", **OPTIONS)
    def narrow(rows, out):
        for start in range(0, rows.size, 8):
            vector.store_float16(out, 2 * start, vector.load(rows, start, 8))

    vector._converts_halves = before
    return widen, narrow


ALL_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def test_every_half_is_widened(halves):
    out = np.empty(ALL_HALVES.size, np.float32)
    halves[0](ALL_HALVES.view(np.uint8), out)
    expected = ALL_HALVES.astype(np.float32)
    np.testing.assert_array_equal(out, expected)
    assert np.array_equal(np.signbit(out), np.signbit(expected))


def test_floats_are_narrowed_to_the_nearest_half(halves):
    finite = np.sort(ALL_HALVES[np.isfinite(ALL_HALVES)].astype(np.float32))
    middles = (finite[1:] + finite[:-1]) / 2
    beside = [np.nextafter(middles, np.float32(side), dtype=np.float32) for side in (-np.inf, np.inf)]
    chance = np.random.default_rng(0)
    anything = chance.integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    rows = np.concatenate([ALL_HALVES.astype(np.float32), finite, middles, *beside, anything])
    rows = np.resize(rows, -(-rows.size // 8) * 8)
    out = np.empty(rows.size, np.float16)
    halves[1](rows, out.view(np.uint8))
    clipped = np.where(np.isfinite(rows), np.clip(rows, -vector.FLOAT16_MAX, vector.FLOAT16_MAX), rows)
    expected = clipped.astype(np.float16)
    np.testing.assert_array_equal(out, expected)
    known = ~np.isnan(rows)
    assert np.array_equal(out[known].view(np.uint16), expected[known].view(np.uint16))
