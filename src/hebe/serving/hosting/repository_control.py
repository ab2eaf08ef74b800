"""Loading, unloading and listing models by request, for both protocols."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from hebe.server_configuration import Lane, from_dict
from hebe.serving.requests.errors import ErrorKind, InvalidInput, LoadFailed, RequestError, quoted
from hebe.spec import SpecError

if TYPE_CHECKING:
    from hebe.serving.hosting.model_host import ModelHost


_MOST_CONFIG_CHARACTERS = 4096


def _configuration(text: object) -> tuple[Lane, ...]:
    """Of parameter `config`. Raises `InvalidInput`."""
    try:
        if not isinstance(text, str) or len(text) > _MOST_CONFIG_CHARACTERS:
            most = f"at most {_MOST_CONFIG_CHARACTERS} characters"
            raise InvalidInput(f"parameter 'config' must be JSON as text, of {most}")
        settings = json.loads(text)
        if not isinstance(settings, dict):
            raise InvalidInput(f"parameter 'config' is {text!r:.60}; it must be a JSON object")
        return from_dict(settings)
    except (SpecError, json.JSONDecodeError, RecursionError) as fault:
        raise InvalidInput(f"parameter 'config': {fault}") from None


def check_fields(document: Mapping[str, Any], known: str, what: str) -> None:
    """Raise `InvalidInput` where the body of a request, `what`, has another field than `known`: passed over, one that
    is mistyped or out of place would have something else done than was asked.
    """
    for field in document:
        if field != known:
            raise InvalidInput(f"field {quoted(field)} of {what} is unknown; the one that there is, is {known!r}")


def _check_repository(name: str) -> None:
    if name:
        raise InvalidInput(
            f"field 'repository_name' is {quoted(name)}; there is one repository, without a name: leave the field out"
        )


class RepositoryControl:
    """Asks the host to load and unload.

    What was begun is finished even if the client that asked goes away: half a load helps nobody. Whatever names a
    `repository` is refused with `InvalidInput`, since there is no other than the one.
    """

    def __init__(self, host: ModelHost) -> None:
        self._host = host
        self._under_way: set[asyncio.Task[None]] = set()

    async def index(self, ready_only: bool, repository: str = "") -> list[dict[str, str]]:
        """Every model version known to the repository, or those that are ready. Raises `RequestError` UNAVAILABLE where
        the repository cannot be listed.
        """
        _check_repository(repository)
        try:
            entries = await self._host.index()
        except LoadFailed as fault:  # nothing was to be loaded, and the client can do nothing about it
            raise RequestError(ErrorKind.UNAVAILABLE, str(fault)) from None
        return [
            {"name": entry.name, "version": str(entry.version or ""), "state": entry.state, "reason": entry.reason}
            for entry in entries
            if not ready_only or entry.state == "READY"
        ]

    def ready_versions(self, name: str) -> list[str]:
        """The versions of model `name` that answer queries."""
        return [str(model.version) for model in self._host.hosted if model.spec.name == name]

    async def load(self, name: str, parameters: Mapping[str, Any], repository: str = "") -> None:
        """Load the newest version of model `name`, or that of parameter `version`.

        With parameter `config`, a JSON object of settings as a profile has them (`server_configuration.to_dict`), the
        version that runs is run in that configuration instead.
        """
        _check_repository(repository)
        for parameter in parameters:
            if parameter not in ("version", "config"):
                raise InvalidInput(
                    f"parameter {parameter!r:.100} of load is not supported; the repository says how a model is"
                )
        if "config" in parameters:
            if "version" in parameters:
                raise InvalidInput("parameters 'version' and 'config' of load: give one of them")
            configuration = _configuration(parameters["config"])
            await self._to_the_end(self._host.split_anew(name, configuration))
            return
        version = parameters.get("version")
        if version is not None:
            text = str(version) if type(version) is int else version
            if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 18 and int(text)):
                raise InvalidInput(
                    f"parameter 'version' is {quoted(version)}; it must be a whole number from 1, of at most 18 digits"
                )
            version = int(text)
        await self._to_the_end(self._host.load(name, version))

    async def unload(self, name: str, repository: str = "") -> None:
        """Unload all versions of model `name`."""
        _check_repository(repository)
        await self._to_the_end(self._host.unload(name))

    async def _to_the_end(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        try:
            await asyncio.shield(task)
        finally:
            del task  # as in `ModelHost._read`

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # seen by whoever still waits; nobody may
