"""Whether a version in the repository is still the one that was loaded."""

from __future__ import annotations

import hashlib
import json
import os

from hebe.models.repository import ModelRepository


def stored_identity(directory: str | os.PathLike[str], name: str, version: int) -> str:
    """A checksum that changes with the spec and with any file of a version; the files themselves are not read.

    Raises `RepositoryError` if the repository at `directory` has no such version.
    """
    stored = ModelRepository(directory).open(name, version)
    files = {file: record.sha256 for file, record in stored.files.items()}
    content = json.dumps([stored.spec.to_dict(), files], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()
