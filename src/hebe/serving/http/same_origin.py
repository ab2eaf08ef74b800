"""Which web pages may ask for something: a browser on the server's machine sends what any page tells it to, and reaches
what listens on loopback.

Who asks for tokens need not look: pages of other sites have none.
"""

from __future__ import annotations

from ipaddress import ip_address

from hebe.serving.access.listening import on_loopback
from hebe.serving.http1.messages import HttpRequest
from hebe.serving.requests.errors import ErrorKind, RequestError, quoted


class OwnSite:
    """Tells pages of a server that listens on `host` from those of other sites.

    Only on loopback is the name that it is asked by looked at: elsewhere anybody reaches it anyway, by names that it
    cannot know.
    """

    def __init__(self, host: str) -> None:
        self._names = {"localhost", _plain(host)}
        self._checks_names = on_loopback(host)
        self._known = b""  # the header that came last and may: nearly all have the same

    def check(self, head: HttpRequest) -> None:
        """Raise `RequestError` FORBIDDEN for what a page of another site may have sent."""
        host = head.headers.get(b"host")
        if self._checks_names and host is not None and host != self._known:
            self._check_name(host.decode("latin-1").strip())
            self._known = host
        if b"origin" in head.headers and head.method not in ("GET", "HEAD"):
            self._check_origin(head)

    def _check_name(self, host: str) -> None:
        """A page can have the name of its own site point to loopback (DNS rebinding), and could then read answers too.
        Addresses, and names that always are this machine's, it cannot have.
        """
        name = _plain(host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0])
        if name in self._names or name.endswith(".localhost") or _is_address(name):
            return
        raise RequestError(
            ErrorKind.FORBIDDEN,
            f"header Host is {quoted(host)}, no name of this server, which listens on loopback: a web page may have "
            "had that name point here; ask for localhost or for an address, or start the server with --host and that "
            "name, or with tokens (--api-token-file)",
        )

    def _check_origin(self, head: HttpRequest) -> None:
        """A browser lets any page send a POST, only not read the answer: that page could load and unload models."""
        origin = head.header(b"origin") or ""
        if origin.partition("://")[2] != head.header(b"host"):
            raise RequestError(
                ErrorKind.FORBIDDEN,
                f"header Origin is {quoted(origin)}, another site than this server: its pages may send nothing here "
                "unless tokens are set (--api-token-file) and they have one",
            )


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
