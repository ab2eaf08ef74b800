"""What a forked process sees of an object that its parent has opened."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable

_TIMEOUT_S = 60


def in_child(act: Callable[[], object]) -> object:
    """What `act` returns in a process forked from this one, by way of JSON. A child that hangs or raises fails the
    test.
    """
    read, write = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_TIMEOUT_S)
            os.write(write, json.dumps(act()).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    with open(read, "rb") as answer:
        answered = answer.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {status}"
    return json.loads(answered)
