"""Where compiled kernels are kept for the next process, and what the log says of it.

Kernels of other sources, of another Python or numba, and of another CPU lie in folders of their own below the cache:
hosts and versions of Hebe may share one. This module lies in the folder below which all kernels do.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.registry import cpu_target

CACHE_VARIABLE = "HEBE_KERNEL_CACHE"
"""Environment variable that names the cache; child processes inherit it."""

_FOLDER_OF_SOURCES = "kernels-"
_INDEX_FILES = "*.nbi"

log = logging.getLogger("hebe.kernels")


@dataclass(slots=True)
class KernelCounts:
    """How many kernels this process compiled, loaded from the cache, and compiled but could not keep."""

    compiled: int = 0
    loaded: int = 0
    unkept: int = 0


counts = KernelCounts()
"""Those of this process."""


@dataclass(frozen=True, slots=True)
class KernelFolder:
    """The folder for kernels of these sources, this Python and numba, and this CPU.

    `path` is None where kernels can neither be kept nor loaded, and `refusal` says why. `of_others` says whose kernels
    the cache holds where it has none for this process: empty where it is new.
    """

    path: Path | None
    refusal: str = ""
    of_others: str = ""


class KernelCacheError(Exception):
    """Kernels cannot be kept; the message names the folder and the reason."""


def kernel_folder() -> KernelFolder:
    """Where kernels are kept, chosen at the first call.

    The environment names a cache: `HEBE_KERNEL_CACHE`, else numba's own `NUMBA_CACHE_DIR`. Without a name it lies
    beside the sources, or in the user's cache directory where those can neither be written nor hold such kernels.
    """
    return _chosen_folder(os.environ.get(CACHE_VARIABLE) or os.environ.get("NUMBA_CACHE_DIR", ""))


def required_kernel_folder() -> Path:
    """The folder for kernels of this process. Raises `KernelCacheError` where there is none."""
    folder = kernel_folder()
    if folder.path is None:
        raise KernelCacheError(f"compiled kernels cannot be kept: {folder.refusal}")
    return folder.path


@functools.cache
def _chosen_folder(named: str) -> KernelFolder:
    beside = Path(__file__).parent / "__pycache__"
    of_user = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "hebe"
    caches = [Path(named)] if named else [beside, *([of_user] if of_user.is_absolute() else [])]
    refusals = []
    for cache in caches:
        sources = cache / f"{_FOLDER_OF_SOURCES}{sources_digest()[:16]}"
        path = sources / _interpreter() / _processor()
        if any(path.glob(_INDEX_FILES)):
            return KernelFolder(path.absolute())  # even where it cannot be written, as one that came with an image
        if cache == beside:
            _remove_former_kernels(sources)
        refusal = _why_not_writable(path)
        if not refusal:
            return KernelFolder(path.absolute(), of_others=_of_others(path))
        refusals.append(f"{cache}: {refusal}")
    return KernelFolder(None, "; ".join(refusals), _of_others(path))


def _interpreter() -> str:
    return f"{sys.implementation.cache_tag}-numba-{numba.__version__}"


def _processor() -> str:
    """A name for the CPU: the compiler's, and a digest of all that the compiler knows of it."""
    _, name, _ = known = cpu_target.target_context.codegen().magic_tuple()
    return f"{name}-{hashlib.sha256(repr(known).encode()).hexdigest()[:8]}"


def _remove_former_kernels(sources: Path) -> None:
    """Remove kernels of former sources from the folder that belongs to these sources alone."""
    for former in sources.parent.glob(f"{_FOLDER_OF_SOURCES}*"):
        if former != sources:
            shutil.rmtree(former, ignore_errors=True)


def _why_not_writable(path: Path) -> str:
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


def _of_others(path: Path) -> str:
    """Whose kernels of these sources lie in other folders than `path`."""
    interpreter, sources = path.parent, path.parents[1]
    processors = [each.parent for each in interpreter.glob(f"*/{_INDEX_FILES}") if each.parent != path]
    if processors:
        names = sorted({each.name.rpartition("-")[0] for each in processors})
        own = path.name.rpartition("-")[0]
        return f"another CPU ({', '.join(names)}; this is {own}{', with other features' if own in names else ''})"
    versions = sorted({each.parents[1].name for each in sources.glob(f"*/*/{_INDEX_FILES}")})
    return f"another Python or numba ({', '.join(versions)}; this is {interpreter.name})" if versions else ""


@functools.cache
def sources_digest() -> str:
    """Of the sources of all kernels: the files of this folder and of those below it, with their names."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        source = path.read_bytes()
        # With its length, so that no line can move from one file to another unseen.
        digest.update(f"{path.relative_to(folder)}\0{len(source)}\0".encode())
        digest.update(source)
    return digest.hexdigest()


def cache_of(function: Callable[..., Any]) -> FunctionCache | None:
    """Where numba keeps `function` compiled; None where it cannot be kept, which the log says once."""
    folder = kernel_folder()
    if folder.path is None:
        _say_once(logging.WARNING, "not kept", f"compiled kernels cannot be kept: {folder.refusal}. {_NAME_ANOTHER}")
        return None
    try:
        return _KernelCache(function, folder.path)
    except OSError:  # a function of no file, as in a notebook
        return None


def compiling(*, kept: bool) -> None:
    """Count a kernel that is about to be compiled. The log says so once a process."""
    counts.compiled += 1
    counts.unkept += not kept
    if of_others := kernel_folder().of_others:
        _say_once(logging.WARNING, "of others", f"the cache of compiled kernels is of {of_others}")
    _say_once(
        logging.INFO,
        "compiling",
        "compiling kernels, which takes up to some seconds each: hebe precompile does so before a server starts",
    )


_NAME_ANOTHER = f"Each process compiles them again; name another folder by --kernel-cache or {CACHE_VARIABLE}"

_said: set[str] = set()
_saying = threading.Lock()


def _say_once(level: int, subject: str, line: str) -> None:
    with _saying:
        if subject in _said:
            return
        _said.add(subject)
    log.log(level, line)


class _Locator:
    """Says where the files of a kernel lie, and of which sources they are, as numba's own locators do."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self._folder = folder
        self._line = function.__code__.co_firstlineno
        source = Path(function.__code__.co_filename).read_bytes()  # which may lie elsewhere than all kernels
        self._stamp = (hashlib.sha256(source).hexdigest(), sources_digest())

    def ensure_cache_path(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> tuple[str, str]:
        return self._stamp

    def get_disambiguator(self) -> str:
        return str(self._line)


class _KernelCache(FunctionCache):
    """Keeps one kernel in `folder`. What is kept and cannot be used is forgotten; what cannot be kept is no error."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        class Files(CompileResultCacheImpl):  # numba makes it, and gives it the function alone
            def __init__(self, function: Callable[..., Any]) -> None:
                self._lineno = function.__code__.co_firstlineno
                self._locator = _Locator(function, folder)
                module = Path(function.__code__.co_filename).stem
                name = f"{module}.{function.__qualname__}"
                self._filename_base = self.get_filename_base(name, sys.abiflags)  # type: ignore[no-untyped-call]

        self._impl_class = Files
        super().__init__(function)  # type: ignore[no-untyped-call]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The kernel, or None where it is to be compiled."""
        kernel = None
        try:
            kernel = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:
            # A machine that loses power may leave files of no length, or of zeros, which numba raises for, each time.
            with contextlib.suppress(OSError):
                Path(self._cache_file._index_path).unlink(missing_ok=True)
        if kernel is None:
            compiling(kept=True)
        else:
            counts.loaded += 1
        return kernel

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled, or have the log say once why not."""
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except Exception as error:  # of the system, or numba's of an index that is damaged and cannot be removed
            counts.unkept += 1
            reason = (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__}: {error}"
            line = f"compiled kernels cannot be kept: {self.cache_path}: {reason}. {_NAME_ANOTHER}"
            _say_once(logging.WARNING, "not kept", line)
