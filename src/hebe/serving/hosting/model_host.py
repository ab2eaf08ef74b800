"""The models that this server has in memory: load, replace, unload, find.

A new version is loaded and warmed up beside the running one, on threads of low priority, and takes its place only
when it has answered a query; the old one finishes what it has and gives its memory back. A load that fails
changes nothing but the reason that the index shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import torch

from hebe.machine.pinning import (
    PlacedLane,
    PlacedServer,
    allot_cores,
    available_cores,
    beside_front_end,
    front_end_cores,
    pinned,
    place_lanes,
)
from hebe.machine.process_limits import give_back_freed
from hebe.machine.this_server import cores_allowed
from hebe.query import MOST_ITEMS
from hebe.runtime.accelerator import Accelerator
from hebe.runtime.loaded_model import LoadedModel, LoadOptions, remove_old_stores, stored_identity
from hebe.runtime.tier_state import tier_kinds
from hebe.runtime.workers.lane_workers import MOST_REHEARSED_ITEMS
from hebe.scheduling.node.node import NodeConfig
from hebe.server_configuration import Lane, Placement, to_dict
from hebe.serving.engine.driver import NodeDriver, clock
from hebe.serving.hosting.dedicated_thread import giving_way, in_own_thread
from hebe.serving.hosting.hosted_model import HostedModel
from hebe.serving.hosting.model_index import ModelIndex, ModelIndexEntry, reason_of
from hebe.serving.hosting.profile_in_use import ProfileInUse
from hebe.serving.hosting.served_configuration import ServedConfiguration
from hebe.serving.hosting.stored_models import StoredModels
from hebe.serving.requests.errors import LoadFailed, ModelNotReady, ServeError, UnknownModel

log = structlog.get_logger("hebe.models")

_TRY_FAILING_S, _ANSWER_PATIENCE_S = 2.0, 10.0
"""How often a model whose batches fail is given a query of our own, and how long that may take."""
_LOOK_S = 0.02
"""How often it is looked whether what was admitted is answered, or a load has ended."""
_LOADS_PATIENCE_S = 10.0
"""How long a stop waits at most for loads to give up; one that does so later frees by itself what it has."""
_TELL_EVERY_S = 5.0
"""How often the log says how far a load has come."""

MOST_WORKERS = 1024
"""Of one model: each has threads and buffers of its own."""


@dataclass(frozen=True, slots=True)
class HostOptions:
    """How every model of this server is run.

    `workers` of `worker_cores` cores each (None: as many as the available cores make) with `worker_threads` each (None:
    as `pinning.threads_per_worker` says); `batch_size`, `fuse`, `spread`, `max_wait_s`, `max_queue`, `admission` as in
    `NodeConfig`; `max_items`: the largest query size taken. SLA overrides apply to all models. `configurations`, by
    model, take the place of workers, cores, threads, batch size and the model's SLA target for those that they name.
    Raises `ServeError` naming the field that is out of range.
    """

    workers: int | None = None
    worker_cores: int = 1
    worker_threads: int | None = None
    batch_size: int = 256
    fuse: bool = True
    spread: bool = True
    max_wait_s: float = 0.0
    max_queue: int = 1024
    max_items: int = MOST_ITEMS
    admission: bool = True
    sla_ms: float | None = None
    percentile: float | None = None
    load: LoadOptions = field(default_factory=LoadOptions)
    configurations: Mapping[str, ServedConfiguration] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cores = len(available_cores())
        for name, fits, limits in (
            ("workers", self.workers is None or 1 <= self.workers <= MOST_WORKERS, f"in 1..{MOST_WORKERS}"),
            ("worker_cores", 1 <= self.worker_cores <= cores, f"in 1..{cores}, the cores that may be used here"),
            ("worker_threads", self.worker_threads in (None, 1, 2), "1 or 2"),
            ("batch_size", self.batch_size >= 1, "at least 1 item"),
            ("max_wait_s", 0 <= self.max_wait_s < math.inf, "0 or more seconds"),
            ("max_queue", self.max_queue >= 1, "at least 1 query"),
            ("max_items", self.max_items >= 1, "at least 1"),
            ("sla_ms", self.sla_ms is None or 0 < self.sla_ms < math.inf, "more than 0 milliseconds"),
            ("percentile", self.percentile is None or 0 < self.percentile < 100, "between 0 and 100, both excluded"),
        ):
            if not fits:
                raise ServeError(f"{name} is {getattr(self, name)}: must be {limits}")


class ModelHost:
    """Loads models from one repository and finds them by name. All methods run on one event loop."""

    def __init__(self, directory: Path, options: HostOptions) -> None:
        self.directory = directory
        self.stored = StoredModels(directory)
        self.options = options
        self.clock: Callable[[], float] = clock
        self.on_loaded: Callable[[HostedModel], None] | None = None
        self.on_unloaded: Callable[[HostedModel], None] | None = None
        self.live = True
        self._hosted: dict[str, HostedModel] = {}
        self._index = ModelIndex(lambda: self.clock())
        self._wanted: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._locks_in_use: Counter[str] = Counter()
        self._closing: dict[asyncio.Task[object], str] = {}
        """What closes in the background, and of which model."""
        self.cores = cores = available_cores()
        workers = options.workers or max(cores_allowed(cores) // options.worker_cores, 1)
        self.worker_cores = allot_cores(workers, options.worker_cores, cores)
        self._own_lanes = {name: self._lanes_of(name) for name in options.configurations}
        self.front_end = front_end_cores(self._taken(), cores)
        lane = Lane(Placement.MODEL_ON_HOST, workers, options.worker_cores, options.batch_size)
        self._placed = self._beside([PlacedLane(lane, tuple(self.worker_cores))])
        self.worker_threads = self._placed.threads
        self._profiles = {name: ProfileInUse(served) for name, served in options.configurations.items()}

    def _lanes_of(self, name: str) -> tuple[PlacedLane, ...]:
        try:
            return place_lanes(self.options.configurations[name].lanes, self.cores)
        except ValueError as fault:
            raise ServeError(f"model {name}: {fault}") from None

    def _beside(self, lanes: Sequence[PlacedLane], name: str | None = None) -> PlacedServer:
        """These lanes beside the front end, for model `name` (None: for those that have no configuration of their own),
        with the threads that were asked for: none were for a model whose configuration decides, nor for pipelines.
        """
        placed = beside_front_end(lanes, self.cores, self.front_end)
        whole = all(each.lane.placement is Placement.MODEL_ON_HOST for each in lanes)
        if self.options.worker_threads is None or name in self.options.configurations or not whole:
            return placed
        return replace(placed, threads=self.options.worker_threads)

    def _taken(self) -> list[tuple[int, ...]]:
        """The cores of all workers there will be."""
        own = [own for lanes in self._own_lanes.values() for placed in lanes for own in placed.all_workers]
        return own + self.worker_cores if self._has_others() else own

    def _has_others(self) -> bool:
        """Whether there are models without a configuration of their own."""
        if not self._own_lanes:
            return True
        try:
            return not self._own_lanes.keys() >= self.stored.versions().keys()
        except LoadFailed:  # `stored.check` says so where it matters
            return True

    @property
    def ready(self) -> bool:
        """Whether every model that should be served can answer."""
        hosted = [self._hosted.get(name) for name in self._wanted]
        return self.live and bool(hosted) and all(model is not None and model.ready for model in hosted)

    @property
    def hosted(self) -> tuple[HostedModel, ...]:
        """The models in memory that take queries."""
        return tuple(self._hosted.values())

    @property
    def loading(self) -> bool:
        """Whether a model is being loaded, brought up to date or unloaded."""
        return any(lock.locked() for lock in self._locks.values())

    @property
    def profiles(self) -> tuple[ProfileInUse, ...]:
        """Those that models run by, or ran."""
        return tuple(self._profiles.values())

    @contextlib.asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        """One at a time for each name. Names are the clients', so of one that nobody is at work on nothing is kept."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._locks_in_use[name] += 1
        try:
            async with lock:
                yield
        finally:
            self._locks_in_use[name] -= 1
            if not self._locks_in_use[name]:
                del self._locks[name], self._locks_in_use[name]

    def find(self, name: str, version: str | None = None) -> HostedModel:
        """The model that answers for `name` (and `version`, as a client wrote it; None or empty: any).

        Raises `UnknownModel` naming what is loaded, `ModelNotReady`.
        """
        model = self._hosted.get(name)
        if model is None:
            entry = self._index.find(name)
            if entry is not None and entry.state in ("LOADING", "UNLOADING"):
                raise ModelNotReady(f"model {name} is being {entry.state.lower().removesuffix('ing')}ed")
            if entry is not None and entry.reason:
                raise ModelNotReady(f"model {name} is unavailable: {entry.reason}")
            known = ", ".join(sorted(self._hosted)) or "none"
            raise UnknownModel(f"model {name!r} is not loaded; loaded: {known}")
        if version and version != str(model.version):
            raise UnknownModel(f"model {name} has no version {version!r} loaded; loaded: {model.version}")
        return model

    @property
    def entries(self) -> tuple[ModelIndexEntry, ...]:
        """The models that were ever to be loaded, with their states, by name; the repository is not read for it."""
        return self._index.entries

    @property
    def load_failures(self) -> Mapping[str, int]:
        """How often a load, a refresh or a new split of each of these models has failed."""
        return self._index.failures

    def wants(self, name: str) -> bool:
        """Whether model `name` should be served, so that the server is not ready without it."""
        return name in self._wanted

    async def index(self) -> list[ModelIndexEntry]:
        """Every model of the repository with its state, by name."""
        stored = await self.stored.read()
        entries = {entry.name: entry for entry in self.entries}
        for name, versions in stored.items():
            entries.setdefault(name, ModelIndexEntry(name, _newest(versions), "UNAVAILABLE", "not loaded"))
        return [entries[name] for name in sorted(entries)]

    async def load_all(self) -> None:
        """Load the newest version of every model of the repository; failures are logged and kept in the index.

        Raises `LoadFailed` if none can be loaded.
        """
        stored = await self.stored.read_checked()
        names = list(stored)
        if self.options.load.hierarchy is not None:
            for said in self.options.load.hierarchy.models_beside(names):
                log.warning("part of the hierarchy's configuration is for no model", reason=said)
        self._wanted.update(names)
        for name, versions in stored.items():  # those that wait for their turn as well
            self._index.put(name, _newest(versions), "LOADING")
        in_log = len(names) > 1  # else whoever starts the server is told, by what is raised
        for name in names:
            try:
                await self.load(name, in_log=in_log)
            except (LoadFailed, UnknownModel) as fault:
                if isinstance(fault, UnknownModel):  # it has gone from the repository
                    self._index.failed("load", name, _newest(stored[name]), fault, in_log=in_log)
                entry = self._index.find(name)
                if entry is not None and entry.state == "LOADING":  # or the repository cannot be read any more
                    self._keep(name, None, _newest(stored[name]), str(fault))
                if not in_log:
                    raise LoadFailed(str(fault)) from fault
        if not self._hosted:
            raise LoadFailed(f"none of the {len(names)} models of {self.directory} could be loaded; the log says why")

    async def load(self, name: str, version: int | None = None, *, in_log: bool = True) -> None:
        """Load a version (default: the newest) and let it take over. Raises `UnknownModel`, or `LoadFailed` saying why.

        Where that version is in memory and its tables are tiered, it is mended instead: a second one beside it would
        find the persistent store taken. Not `in_log`: that it failed is left to the caller to tell.
        """
        async with self._alone(name):
            self._check_live()
            try:
                versions = (await self.stored.read()).get(name)
            except LoadFailed as fault:
                self._index.failed("load", name, version or 0, fault, in_log=in_log)
                raise
            if versions is None:
                raise UnknownModel(f"repository {self.directory} has no model {name!r}")
            if versions and version is not None and version not in versions:
                known = ", ".join(str(each) for each in versions[-8:])
                raise UnknownModel(f"model {name} has no version {version}; the repository has {known}")
            version = version or _newest(versions)
            await self.stored.tell_incomplete(name)
            before = self._hosted.get(name)
            if before is not None and before.version == version and before.tiered:
                await self._mend(before)
                return
            if before is None:
                self._index.put(name, version, "LOADING")
            started_s = self.clock()
            log.info("loading model", model=name, version=version)
            try:
                model = await in_own_thread(self._open, name, version, before)
                try:
                    await self._answer_one(model)
                    self._check_live()
                except BaseException:
                    self._in_background(name, self._close_model(model))
                    raise
            except Exception as fault:
                if self.live:  # one that a stop has broken off is no failure
                    self._index.failed("load", name, version, fault, in_log=in_log)
                self._keep(name, before, version, reason_of(fault))
                raise LoadFailed(f"model {name}: {reason_of(fault)}") from fault
            self._hosted[name] = model
            self._wanted.add(name)
            self._index.put(name, model.version, "READY")
            if self.on_loaded is not None:
                self.on_loaded(model)
            seconds = round(self.clock() - started_s, 3)
            log.info("model loaded", model=name, version=model.version, workers=model.workers, seconds=seconds)
            self._in_background(name, self._replaced(before, model))

    async def try_failing(self) -> None:
        """Give models whose last batches all failed a query of our own, every two seconds, until one is answered: a
        balancer sends a server that is not ready none which could show that it can answer again. Ends when cancelled.
        """
        while True:
            await asyncio.sleep(_TRY_FAILING_S)
            for model in self.hosted:
                if model.fails:
                    with contextlib.suppress(Exception):
                        await asyncio.wait_for(self._answer_one(model), _ANSWER_PATIENCE_S)
                        log.info("batches run again", model=model.spec.name, version=model.version)

    async def _mend(self, model: HostedModel) -> None:
        """New workers, where some were lost or their batches fail, and level 1 of the version in memory from the tiers
        below it, unless the repository has another version by now.
        """
        name, version = model.spec.name, model.version
        try:
            if not model.runs:
                await self._start_anew(model)
            if await in_own_thread(stored_identity, self.directory, name, version) != model.identity:
                raise LoadFailed(
                    f"version {version} runs, and its files have changed since it was loaded; "
                    "write them as a new version, or unload the model first"
                )
            report = await in_own_thread(model.refresh)
            if report is not None and report.unreachable:
                raise LoadFailed(
                    f"{report.unreachable:,} of the {report.rows:,} rows in the cache were not refreshed: "
                    f"{' and '.join(model.degraded) or 'a tier'} did not answer"
                )
        except Exception as fault:
            self._index.failed("refresh", name, version, fault)
            self._index.put(name, version, "READY", f"refresh failed: {reason_of(fault)}")
            raise LoadFailed(f"model {name}: {reason_of(fault)}") from fault
        self._index.put(name, version, "READY")
        if report is not None:
            seconds = round(report.seconds, 3)
            log.info("cache refreshed", model=name, version=version, rows=report.rows, seconds=seconds)

    async def _start_anew(self, model: HostedModel) -> None:
        name, trouble = model.spec.name, model.trouble
        try:
            await in_own_thread(model.split_anew, self._beside(model.lanes, name))
            await self._answer_one(model)
        except Exception as fault:
            raise LoadFailed(f"new workers fail, too: {reason_of(fault)}; unload the model, then load it") from fault
        log.info("workers started anew", model=name, version=model.version, reason=trouble)

    async def split_anew(self, name: str, configuration: tuple[Lane, ...]) -> None:
        """Run a model that is loaded in another configuration, without losing a query. Raises `UnknownModel`, or
        `LoadFailed` saying why that cannot be; it then runs as before.
        """
        async with self._alone(name):
            model = self._hosted.get(name)
            if model is None:
                raise UnknownModel(f"model {name!r} is not loaded")
            before = model.configuration
            try:
                if (largest := max(lane.batch_size for lane in configuration)) > self.options.max_items:
                    raise ServeError(
                        f"batch_size is {largest}: at most {self.options.max_items}, the largest query taken"
                    )
                placed = self._beside(place_lanes(configuration, self.cores), name)
                await in_own_thread(model.split_anew, placed)
            except Exception as fault:
                self._index.failed("new split", name, model.version, fault)
                raise LoadFailed(f"model {name}: {reason_of(fault)}; it runs as before") from fault
            log.info("server split anew", model=name, configuration=to_dict(configuration), before=to_dict(before))

    async def unload(self, name: str) -> None:
        """Take a model out and free its memory; returns when it is free, also that of a version which it has replaced.
        If it cannot be closed, the index says why. One that should be served and could not be loaded is given up, so
        that the server may be ready without it.

        Raises `UnknownModel` if it is neither, `ModelNotReady` if at start it waits for its turn to be loaded; both
        change nothing.
        """
        async with self._alone(name):
            model, entry = self._hosted.pop(name, None), self._index.find(name)
            if model is not None:
                version = model.version
            elif entry is None or name not in self._wanted:
                raise UnknownModel(f"model {name!r} is not loaded")
            elif entry.state == "LOADING":
                raise ModelNotReady(f"model {name} waits for its turn to be loaded: unload it after that")
            else:
                version = entry.version
            self._wanted.discard(name)
            self._index.put(name, version, "UNLOADING")
            trouble = "" if model is None else await self._close_model(model)
            if earlier := [task for task, of in self._closing.items() if of == name]:
                await asyncio.wait(earlier)
            reason = f"unloaded, but not all that it held is given back: {trouble}" if trouble else "unloaded"
            self._index.put(name, version, "UNAVAILABLE", reason)
            log.info("model unloaded", model=name, version=version)

    def begin_shutdown(self) -> None:
        """Be live and ready no more; every model answers what it has admitted and refuses the rest."""
        self.live = False
        for model in self._hosted.values():
            model.begin_shutdown()

    async def close(self) -> None:
        """Answer what was admitted, then free every model, also those that are being loaded."""
        self.begin_shutdown()
        self.stored.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOADS_PATIENCE_S):
                while self.loading:
                    await asyncio.sleep(_LOOK_S)
        models, self._hosted = list(self._hosted.values()), {}
        await asyncio.gather(*self._closing, *(self._close_model(model) for model in models))

    def _check_live(self) -> None:
        """Give up a load that nobody would take any more: raises `LoadFailed` once the server stops."""
        if not self.live:
            raise LoadFailed("the server stopped while it was being loaded")

    def _open(self, name: str, version: int, before: HostedModel | None) -> HostedModel:
        """Everything about a load that takes time; not on the event loop. If the server was split anew for the version
        `before`, it stays so.
        """
        options = self.options
        served = options.configurations.get(name)
        placed = self._placed if served is None else self._beside(self._own_lanes[name], name)
        if before is not None and before.configuration != tuple(each.lane for each in placed.lanes):
            placed = self._beside(before.lanes, name)
        loaded = self._read(name, version, len(placed.workers) * placed.threads)
        give_back_freed()  # several times the DenseNet's weights: what reading and scripting it copied
        sla = loaded.spec.sla if served is None else served.sla
        config = NodeConfig(
            batch_size=placed.lanes[0].lane.batch_size,
            fuse=options.fuse,
            spread=options.spread,
            max_wait_s=options.max_wait_s,
            max_queue=options.max_queue,
            sla_s=(options.sla_ms or sla.latency_ms) / 1e3,
            percentile=options.percentile or sla.percentile,
            admission=options.admission,
        )
        try:
            self._check_live()
            with pinned(self.cores):  # wherever there is room: the front end's cores alone may be too few
                loaded.start(self._check_live)
            self._check_live()
            if served is not None and served.accelerator is not None:
                accelerator = served.accelerator(loaded.spec)
                accelerator.warm_up(loaded)
            else:  # where lanes may be moved to, but for those with hot rows: nobody has said which these are
                accelerator = Accelerator()
            if before is not None:
                giving_way(partial(_rehearse, loaded, config.batch_size), self.front_end)
                self._check_live()
            driver = NodeDriver(
                loaded,
                config,
                placed.lanes,
                threads=placed.threads,
                gives_way=placed.gives_way,
                max_items=options.max_items,
                accelerator=accelerator,
                rehearsed=before is not None,
            )
            try:
                self._check_live()
                loaded.check_level_3()  # by now level 1 is filled, and the workers are warm
            except BaseException:
                driver.close()
                raise
            profile = None if served is None else self._profile_of(served, loaded, config)
            return HostedModel(driver, options.max_items, tier_kinds(loaded, options.load), profile)
        except BaseException:
            loaded.close()
            raise

    def _profile_of(self, served: ServedConfiguration, loaded: LoadedModel, config: NodeConfig) -> ProfileInUse | None:
        """The profile that `served` is from, unless it is of something else than what runs; the log then says of what.

        The configuration stays.
        """
        name = loaded.spec.name
        differs = ""
        if (loaded.version, loaded.identity) != (served.version, served.identity):
            again = " as it was written before" if loaded.version == served.version else ""
            differs = f"it is of version {served.version}{again}"
        elif (config.sla_s, config.percentile) != (served.sla.latency_s, served.sla.percentile):
            differs = f"it is for p{served.sla.percentile:g} within {served.sla.latency_ms:g} ms"
        if not differs:
            return self._profiles[name]
        log.warning(
            "the configuration is a profile's, its efficiency tuple is not this model's: profile it anew",
            model=name,
            version=loaded.version,
            reason=differs,
        )
        return None

    def _read(self, name: str, version: int, threads: int) -> LoadedModel:
        """Bring the tables into memory, for so many threads."""
        options = self.options
        tell_s = self.clock() + _TELL_EVERY_S

        def go_on(done: int, total: int) -> None:
            nonlocal tell_s
            self._check_live()
            if self.clock() >= tell_s:
                tell_s = self.clock() + _TELL_EVERY_S
                log.info(
                    "loading model", model=name, version=version, done=f"{done / max(total, 1):.0%} of {total:,} B"
                )

        load = partial(LoadedModel.load, self.directory, name, version, options.load, threads)
        return giving_way(partial(load, progress=go_on, start=False), self.front_end)

    async def _answer_one(self, model: HostedModel) -> None:
        """The warm-up query, through the scheduler and a worker as any other."""
        query = model.warm_up_query()
        query.arrival_s = self.clock()
        query.deadline_s = query.arrival_s + 60.0
        await model.infer(query)

    def _keep(self, name: str, before: HostedModel | None, version: int, reason: str) -> None:
        if before is None:
            self._index.put(name, version, "UNAVAILABLE", reason)
        else:
            reason = f"{f'version {version}' if version else 'the newest version'} failed to load: {reason}"
            self._index.put(name, before.version, "READY", reason)

    def _in_background(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._closing[task] = name
        task.add_done_callback(self._closing.pop)

    async def _replaced(self, before: HostedModel | None, model: HostedModel) -> None:
        """What is left to do once `model` has taken over: free the version before it, and the disk of older ones.

        However long that takes, the version before answers what it has admitted, unless its workers cannot any more or
        the server stops: then it has no more time than any model that is closed.
        """
        if before is not None:
            before.begin_shutdown()
            while self.live and before.runs and not before.idle:
                await asyncio.sleep(_LOOK_S)
            await self._close_model(before)
        name, version = model.spec.name, model.version
        try:
            outcomes = await in_own_thread(remove_old_stores, self.directory, name, version, self.options.load)
        except Exception as fault:
            log.error("old persistent stores were not looked for", model=name, reason=reason_of(fault))
            return
        for path, kept in outcomes.items():
            if kept:
                log.warning("old persistent store kept", model=name, reason=kept)
            else:
                log.info("old persistent store removed", model=name, path=str(path))

    async def _close_model(self, model: HostedModel) -> str:
        """Returns why that failed, else nothing; what there is to do after it is done in either case."""
        if self.on_unloaded is not None:
            self.on_unloaded(model)
        try:
            await in_own_thread(model.close)
        except Exception as fault:
            reason = reason_of(fault)
            log.error("model not closed", model=model.spec.name, version=model.version, reason=reason)
            return reason
        return ""


def _rehearse(model: LoadedModel, batch_size: int) -> None:
    """What is the same for all workers of a model is done here, rather than on cores on which others answer queries."""
    items = min(batch_size, MOST_REHEARSED_ITEMS)
    torch.set_num_threads(1)  # as many as a worker's: further ones would have the front end's cores
    model.warm_up(model.new_executor(items).rehearse, items)


def _newest(versions: tuple[int, ...]) -> int:
    """As `ModelIndexEntry` has it."""
    return versions[-1] if versions else 0
