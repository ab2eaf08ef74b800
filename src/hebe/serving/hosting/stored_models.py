"""What the repository on disk holds, read off the event loop: its file system may be slow, or hang."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import structlog

from hebe.runtime.loaded_model import incomplete_versions, repository_above, stored_versions
from hebe.serving.hosting.dedicated_thread import InTurn
from hebe.serving.hosting.model_index import reason_of
from hebe.serving.requests.errors import LoadFailed

log = structlog.get_logger("hebe.models")

StoredVersions = dict[str, tuple[int, ...]]
"""Of each model, oldest first; none where a model's directory cannot be listed."""


class StoredModels:
    """The models of the repository at `directory`. What is asynchronous is done by one thread, one after the other, so
    that no more than one hangs.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._reads = InTurn("hebe-repository")

    def versions(self) -> StoredVersions:
        """Of all models. Blocks. Raises `LoadFailed` if the repository cannot be listed."""
        try:
            return stored_versions(self.directory)
        except Exception as fault:
            raise LoadFailed(reason_of(fault)) from fault

    def check(self) -> StoredVersions:
        """As `versions`. Blocks. Raises `LoadFailed` unless there is a model to load."""
        versions = self.versions()
        if not versions:
            if (above := repository_above(self.directory)) is not None:
                raise LoadFailed(f"{self.directory} is a model, not a repository of models; give {above}")
            beside = "".join(f"; {words}" for words in incomplete_versions(self.directory)[:1])
            command = f"hebe model new NAME --repository {quote(str(self.directory))}"
            raise LoadFailed(f"{self.directory} has no models; make one with `{command}`{beside}")
        return versions

    async def read(self) -> StoredVersions:
        """As `versions`."""
        return await self._reads.do(self.versions)

    async def read_checked(self) -> StoredVersions:
        """As `check`."""
        return await self._reads.do(self.check)

    async def tell_incomplete(self, name: str) -> None:
        """Log what looks like a version of model `name` and is none: who made one wonders why another is loaded."""
        try:
            for words in await self._reads.do(lambda: incomplete_versions(self.directory, name)):
                log.warning("not a version", model=name, reason=words)
        except Exception as fault:
            log.warning("the model's directory cannot be listed", model=name, reason=reason_of(fault))

    def close(self) -> None:
        """Read no more; what hangs is left to it."""
        self._reads.close()
