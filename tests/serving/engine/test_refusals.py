import numpy as np
import pytest

from hebe.query import Query
from hebe.scheduling.events import RejectQuery, RejectReason
from hebe.scheduling.node.node import NodeConfig
from hebe.serving.engine.refusals import refusal

CONFIG = NodeConfig(100, sla_s=0.020, max_queue=7)


def told(reason, predicted_s=0.0, likely_within_s=0.0, *, timeout_s=None):
    """Of a query that came 0.7 ms ago."""
    query = Query(1, 10, 5.0, np.inf if timeout_s is None else 5.0 + timeout_s)
    rejected = RejectQuery(query, reason, predicted_s, likely_within_s)
    return refusal(rejected, 5.0007, CONFIG, has_timeout=timeout_s is not None)


def test_what_the_margin_alone_makes_too_late_is_told_with_it():
    refused = told(RejectReason.DEADLINE, 0.0024, 0.021)
    assert refused.message == (
        "refused: predicted to take 2.4 ms, but up to 21.0 ms if it is as far behind prediction as queries have been "
        "of late, with 19.3 ms left of its latency bound of 20.0 ms"
    )
    assert refused.retry_after_s == 0.0024


def test_what_would_be_late_if_all_goes_as_predicted_is_told_without():
    refused = told(RejectReason.DEADLINE, 0.030, 0.041, timeout_s=0.025)
    assert refused.message == "refused: expected to take 30.0 ms or more, with 24.3 ms left of its timeout of 25.0 ms"


@pytest.mark.parametrize(
    ("reason", "timeout_s", "timed_out", "message"),
    [
        (RejectReason.QUEUE_FULL, None, False, "refused: the queue is full, max_queue is 7"),
        (RejectReason.NO_WORKER, None, False, "refused: no worker is up"),
        (RejectReason.SHUTTING_DOWN, None, False, "refused: the model is being unloaded, or the server stops"),
        (RejectReason.EXPIRED, 0.01, True, "its timeout of 10.0 ms passed before it could be answered"),
        (
            RejectReason.EXPIRED,
            None,
            False,
            "refused: after waiting it could not be answered within its latency bound of 20.0 ms any more",
        ),
    ],
)
def test_every_other_reason_has_its_words(reason, timeout_s, timed_out, message):
    refused = told(reason, timeout_s=timeout_s)
    assert (refused.message, refused.timed_out, refused.reason) == (message, timed_out, reason.value)
