"""What is read of the repository; what the model host makes of it, `test_model_host`."""

from __future__ import annotations

import pytest

from hebe.serving.hosting.stored_models import StoredModels
from hebe.serving.requests.errors import LoadFailed


@pytest.mark.parametrize("given", ["ranker", "ranker/1"])
def test_a_model_in_the_place_of_its_repository_is_told(tmp_path, given):
    (tmp_path / "ranker" / "1").mkdir(parents=True)
    (tmp_path / "ranker" / "1" / "model.toml").touch()
    with pytest.raises(LoadFailed, match=f"{given} is a model, not a repository of models; give {tmp_path}$"):
        StoredModels(tmp_path / given).check()


async def test_versions_are_read_alike_on_the_event_loop_and_off_it(tmp_path):
    for version in ("1", "10", "9"):
        (tmp_path / "ranker" / version).mkdir(parents=True)
        (tmp_path / "ranker" / version / "model.toml").touch()
    stored = StoredModels(tmp_path)
    assert stored.check() == stored.versions() == {"ranker": (1, 9, 10)}
    assert await stored.read_checked() == await stored.read() == {"ranker": (1, 9, 10)}
    stored.close()
