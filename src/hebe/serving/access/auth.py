"""Who may ask, and how often: bearer tokens and a token bucket for each."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from hebe.serving.requests.errors import ErrorKind, RequestError, ServeError

_SCHEME = "bearer "


class TokenBucket:
    """Allows `rate_per_s` requests a second, and as many at once; knows no clock of its own."""

    __slots__ = ("_at_s", "_left", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float) -> None:
        self.rate_per_s = rate_per_s
        self.burst = max(1.0, rate_per_s)
        self._left = self.burst
        self._at_s = float("-inf")

    def take(self, now: float) -> float:
        """0 if a request is allowed at `now` (seconds), else the seconds until one is. Time never runs back."""
        if now > self._at_s:
            self._left = min(self.burst, self._left + (now - self._at_s) * self.rate_per_s)
            self._at_s = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self.rate_per_s


def checked_tokens(tokens: Iterable[str]) -> tuple[str, ...]:
    """`tokens` without the white space around them.

    Raises `ServeError` if they are one text, whose letters would all be tokens, if one of them is empty, since whoever
    gives a token wants one to be asked for, or if one holds what clients cannot send in a header.
    """
    if isinstance(tokens, str | bytes):
        raise ServeError("api_tokens is a single text: must be a tuple of them, as in ('...',)")
    checked = []
    for token in tokens:
        if not isinstance(token, str) or not token.strip():
            raise ServeError("an API token is empty: give one with letters, or none at all to let everybody in")
        if not (token.strip().isascii() and token.strip().isprintable()):
            raise ServeError("an API token has characters that a header cannot carry: must be printable ASCII")
        checked.append(token.strip())
    return tuple(checked)


class Gate:
    """Admits requests by token and rate.

    Without `tokens` everybody is admitted, and `rate_limit_per_s` bounds all requests together; with them it bounds
    each token's. 0 is no limit. Raises as `checked_tokens`.
    """

    def __init__(self, tokens: Iterable[str] = (), rate_limit_per_s: float = 0.0) -> None:
        self._digests = [_digest(token) for token in checked_tokens(tokens)]
        self._rate_limit_per_s = rate_limit_per_s
        self._buckets = [TokenBucket(rate_limit_per_s) for _ in range(max(1, len(self._digests)))]

    @property
    def asks(self) -> bool:
        """Whether requests need a token."""
        return bool(self._digests)

    def check(self, authorization: str | None) -> None:
        """Raise `RequestError` unless the header value `authorization` carries a token, if one is asked for; takes
        nothing of its rate.
        """
        if self._digests:
            self._holder(authorization)

    def admit(self, authorization: str | None, now: float) -> None:
        """Raise `RequestError` unless the header value `authorization` carries a token with requests left."""
        holder = 0
        if self._digests:
            holder = self._holder(authorization)
        if self._rate_limit_per_s:
            wait_s = self._buckets[holder].take(now)
            if wait_s > 0:
                raise RequestError(
                    ErrorKind.RATE_LIMITED,
                    f"the limit of {self._rate_limit_per_s:g} requests a second is used up; "
                    f"try again in {wait_s:.3f} s",
                    retry_after_s=wait_s,
                )

    def knows(self, authorization: str | None) -> bool:
        """Whether the header value `authorization` would be admitted, if there are requests left."""
        try:
            self.check(authorization)
        except RequestError:
            return False
        return True

    def _holder(self, authorization: str | None) -> int:
        if authorization is None:
            raise RequestError(ErrorKind.UNAUTHENTICATED, "no token: send the header 'Authorization: Bearer TOKEN'")
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            raise RequestError(ErrorKind.UNAUTHENTICATED, "header Authorization must be 'Bearer TOKEN'")
        given = _digest(authorization[len(_SCHEME) :].strip())
        found = -1
        for position, digest in enumerate(self._digests):
            # All are compared, each in constant time: how long this takes tells nothing.
            if hmac.compare_digest(given, digest):
                found = position
        if found < 0:
            raise RequestError(ErrorKind.UNAUTHENTICATED, "the token is not known here")
        return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def read_tokens(path: Path) -> list[str]:
    """The tokens in a file, one a line; empty lines and those that start with '#' are skipped.

    Raises `ServeError` if the file cannot be read or has none.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise ServeError(f"token file {path}: {getattr(fault, 'strerror', None) or 'not UTF-8 text'}") from None
    tokens = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not tokens:
        raise ServeError(f"token file {path}: has no token; write one a line")
    return tokens
