"""Work that may take minutes, on a thread of its own.

asyncio's `to_thread` has a few threads for everybody: while some models are loaded at once, whatever else needs one,
such as a query that is packed, would wait until one of them is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")


async def in_own_thread(work: Callable[[*_Arguments], _Result], *arguments: *_Arguments) -> _Result:
    """`work(*arguments)`, what it returns or raises; it goes on if this is cancelled."""
    thread = ThreadPoolExecutor(1, "hebe-work")
    under_way = thread.submit(work, *arguments)
    try:
        return await asyncio.wrap_future(under_way)
    finally:
        thread.shutdown(wait=under_way.done())  # it ends at once, and is not there any more when the caller goes on
        del under_way  # it has what the work raised, whose traceback has this frame
