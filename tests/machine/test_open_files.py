import resource

import pytest

from hebe.machine.process_limits import allow_many_connections


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1024, 1 << 20, 65_536),
        (1024, 4096, 4096),
        (1024, resource.RLIM_INFINITY, 65_536),
        (100_000, 1 << 20, 100_000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    ],
)
def test_the_soft_limit_of_open_files_is_raised_and_the_hard_one_left(monkeypatch, soft, hard, raised):
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.append(wanted))
    allow_many_connections()
    assert limits[-1] == (raised, hard)
