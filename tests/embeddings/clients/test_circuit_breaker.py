import pytest

from hebe.embeddings.clients.circuit_breaker import BreakerOptions, CircuitBreaker


def test_opens_after_failures_in_a_row_and_probes_ever_more_seldom() -> None:
    breaker = CircuitBreaker(BreakerOptions(failures=2, pause_s=1.0, longest_pause_s=3.0))
    assert not breaker.failed(0.0, 0.0)
    breaker.succeeded(0.5)
    assert not breaker.failed(0.0, 1.0)
    assert breaker.closed
    assert breaker.failed(0.5, 2.0)
    assert not breaker.closed
    assert breaker.probe_s == 3.0
    breaker.probe_failed(3.0)
    assert breaker.probe_s == 5.0
    breaker.probe_failed(5.0)
    assert breaker.probe_s == 8.0
    breaker.succeeded(8.5)
    assert breaker.closed
    breaker.failed(9.0, 9.0)
    assert breaker.failed(9.0, 11.5)
    assert breaker.probe_s == 12.5, "the pause is short again"


def test_one_that_closes_and_opens_again_and_again_is_tried_ever_more_seldom() -> None:
    breaker, now_s, pauses_s = CircuitBreaker(BreakerOptions(failures=2, pause_s=1.0, longest_pause_s=3.0)), 10.0, []
    for _ in range(4):
        breaker.failed(now_s, now_s)
        assert breaker.failed(now_s, now_s)
        pauses_s.append(breaker.probe_s - now_s)
        now_s = breaker.probe_s
        breaker.succeeded(now_s)
        breaker.succeeded(now_s + 1.0)  # as what does not touch the part that is gone
        now_s += 2.0
    assert pauses_s == [1.0, 2.0, 3.0, 3.0]


def test_a_call_from_before_it_closed_tells_nothing_new() -> None:
    breaker = CircuitBreaker(BreakerOptions(failures=1, pause_s=1.0, longest_pause_s=3.0))
    assert breaker.failed(0.0, 2.0)
    for began_s, now_s in ((1.0, 2.5), (1.0, 4.0), (2.0, 2.5), (3.5, 4.0)):
        assert not breaker.failed(began_s, now_s)
        assert breaker.probe_s == 3.0, "it was no probe, even if one was due"
    breaker.succeeded(5.0)
    assert not breaker.failed(1.0, 6.0)
    assert not breaker.failed(4.9, 6.0)
    assert breaker.closed
    breaker.succeeded(7.0)
    assert breaker.failed(6.5, 8.0), "it was closed by then, and an answer since does not change that"


@pytest.mark.parametrize("options", [{"failures": 0}, {"pause_s": 0.0}, {"pause_s": 2.0, "longest_pause_s": 1.0}])
def test_options_out_of_range(options) -> None:
    with pytest.raises(ValueError, match="must be"):
        BreakerOptions(**options)
