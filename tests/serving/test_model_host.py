"""What the model host decides before it loads anything; the rest is tests/integration's."""

from __future__ import annotations

from pathlib import Path

import pytest

from hebe.serving import model_host
from hebe.serving.errors import ServeError
from hebe.serving.model_host import HostOptions, ModelHost


@pytest.mark.parametrize(
    ("options", "cores"),
    [
        ({}, [(6,), (5,), (4,), (3,), (2,), (1,), (0,)]),
        ({"worker_cores": 3}, [(4, 5, 6), (1, 2, 3)]),
        ({"worker_cores": 5}, [(2, 3, 4, 5, 6)]),
        ({"workers": 2}, [(6,), (5,)]),
    ],
)
def test_by_default_there_are_as_many_workers_as_the_cores_make(monkeypatch, options, cores):
    monkeypatch.setattr(model_host, "available_cores", lambda: tuple(range(7)))
    assert ModelHost(Path("models"), HostOptions(**options)).worker_cores == cores


def test_no_workers_at_all_are_refused():
    with pytest.raises(ServeError, match="workers is 0: must be at least 1"):
        HostOptions(workers=0)
