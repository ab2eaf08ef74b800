"""How many files, and so connections, the system lets this process have open.

Called by programs when they start, since it concerns the whole process: a program's own soft limit is for the program
to raise.
"""

from __future__ import annotations

import sys

_OPEN_FILES = 65_536


def allow_many_connections() -> None:
    """Raise the soft limit of open files, often 1024, towards the hard one: a server that has run out of them can
    neither accept a connection nor say so, and a load generator cannot send.
    """
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
