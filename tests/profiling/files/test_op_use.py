"""Where a batch's time goes, as a profile file has it."""

import json

import pytest

from hebe.profile import ProfileError
from hebe.profiling.files.op_use import OpUse

USE = OpUse(64, {"attention": 0.001, "embedding lookup": 0.0}, {2: 0.25, 4: 1})


def test_it_survives_the_way_to_disk_and_back():
    assert OpUse.from_dict(json.loads(json.dumps(USE.to_dict()))) == USE


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"items": 0}, "items is 0: must be a whole number"),
        ({"items": True}, "items is True"),
        ({"seconds": {"attention": -1.0}}, "seconds of attention is -1.0: must be a number of at least 0"),
        ({"seconds": {"attention": float("nan")}}, "seconds of attention is nan"),
        ({"seconds": {"attention": 10**400}}, "seconds of attention is 10+: must be a finite number"),
        ({"seconds": [1.0]}, "seconds is .*must be an object"),
        ({"idle_share": {"2": 1.5}}, "idle_share of 2 is 1.5: must be a number from 0 to 1"),
        ({"idle_share": {"2": "much"}}, "idle_share of 2 is 'much'"),
        ({"idle_share": {"two": 0.5}}, "idle_share is of 'two'"),
        ({"idle_share": None}, "idle_share is None"),
        ({"more": 1}, "unknown|more"),
    ],
)
def test_what_is_wrong_is_named(changed, fault):
    with pytest.raises(ProfileError, match=fault):
        OpUse.from_dict({**USE.to_dict(), **changed})


def test_what_is_missing_is_named():
    data = USE.to_dict()
    del data["seconds"]
    with pytest.raises(ProfileError, match="seconds"):
        OpUse.from_dict(data)
