"""Opens an update log: the one that a URL names, or the one of a server's configuration.

/var/lib/updates, file:///var/lib/updates      a directory of this machine (`directory.log`)
redis://[USER[:PASSWORD]@]HOST:PORT[,...]      Redis Streams; rediss:// with TLS, unix:///PATH by its socket
rediss://HOST:PORT?tls_ca_certificate=FILE&... its TLS in the words of `[volatile_db]`: see `RedisAccess`
kafka://HOST:PORT[,HOST:PORT...]               Kafka

What carries it is imported only then. A password is better in a file than in a URL, which every process list shows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hebe.embeddings.config.hierarchy_config import UpdateConfig, UpdateType
from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.contract import UpdateLog
from hebe.embeddings.updates.directory.log import LogDirectory, LogDirectoryOptions, is_log_directory
from hebe.embeddings.updates.kafka.options import KafkaOptions, read_security

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FORGOTTEN_SCHEME = re.compile(
    r"[^/]*:[0-9]+(/[0-9]*)?|[A-Za-z][A-Za-z0-9+.-]*:/.*|(redis|rediss|unix|kafka|file):.*", re.S
)
"""HOST:PORT, SCHEME:/... and the like. Were it the name of a directory, one would be made, and updates lost in it."""
_SCHEMES: Mapping[UpdateType, tuple[str, ...]] = {
    UpdateType.NULL: (),
    UpdateType.LOG_DIRECTORY: ("file",),
    UpdateType.REDIS_STREAMS: ("redis", "rediss", "unix"),
    UpdateType.KAFKA: ("kafka",),
}
_FRAME_BYTES = 1024
"""What a message takes of Kafka's limit beyond its own bytes, as HPS has it."""
_FORMS = "give a directory, redis://HOST:PORT, rediss://HOST:PORT, unix:///PATH or kafka://HOST:PORT"


def open_update_log(
    url: str,
    *,
    password: str = "",
    security: Mapping[str, str] | None = None,
    directory: LogDirectoryOptions | None = None,
    create: bool = True,
) -> UpdateLog:
    """The log at `url`; close it.

    `password` is Redis', in place of one in the URL. `security` are settings of Kafka's client, out of
    `kafka.options.SECURITY_SETTINGS`. `directory` says how a log directory is kept that is made now. Each counts where
    it is such a log. Where there is no log in a directory one is made, unless told not to `create` it, or its name is
    like HOST:PORT: such a one is given as ./NAME. Nothing is connected before it is needed.

    Raises ValueError for a URL of another kind and settings that are wrong; `StoreError` for a log that cannot be
    opened, and naming the extra to install where a client library is missing. No message tells a password.
    """
    scheme = _scheme_of(url)
    if not url:
        raise ValueError(f"update log: its address is empty; {_FORMS}")
    if scheme in ("", "file"):
        path = _directory_of(url) if scheme else Path(url)
        if not scheme and _FORGOTTEN_SCHEME.fullmatch(url) and not is_log_directory(path):
            raise ValueError(
                "update log: its address is HOST:PORT or has a scheme without //, which is no directory: "
                "give kafka://HOST:PORT or redis://HOST:PORT, or ./NAME if a directory has that name"
            )
        if not create and not is_log_directory(path):
            raise StoreError(
                f"update log {path}: there is no log; it is made by who writes to it first, or is elsewhere"
            )
        return LogDirectory(path, directory)
    if scheme in ("redis", "rediss", "unix"):
        from hebe.embeddings.updates.redis_streams.log import RedisStreamsLog, RedisStreamsOptions

        options = RedisStreamsOptions.of_url(url)
        if password:
            options = replace(options, access=replace(options.access, password=password))
        return RedisStreamsLog(options)
    if scheme == "kafka":
        return _kafka(KafkaOptions.of_url(url, security))
    raise ValueError(f"update log {scheme}://...: there is no such kind; {_FORMS}")


def open_configured_log(config: UpdateConfig, *, create: bool = True) -> UpdateLog:
    """The log of a server's `[update_source]`, whose type is not `null`; close it.

    An `address` may be a URL, so that rediss:// has TLS and a user. Raises as `open_update_log` does, and ValueError
    for an address that is of another type.
    """
    scheme = _scheme_of(config.address)
    if scheme and scheme not in _SCHEMES[config.type]:
        raise ValueError(f"update log {scheme}://...: is no {config.type}")
    if config.type is UpdateType.KAFKA:
        security = read_security(Path(config.security_file)) if config.security_file else {}
        options = KafkaOptions.of_url(config.address) if scheme else KafkaOptions(config.address)
        options = replace(options, security=security)
        most_bytes = max(options.most_message_bytes, config.receive_buffer_size + _FRAME_BYTES)
        refresh_ms = config.metadata_refresh_interval_ms
        return _kafka(replace(options, metadata_refresh_interval_ms=refresh_ms, most_message_bytes=most_bytes))
    if config.type is UpdateType.REDIS_STREAMS:
        from hebe.embeddings.updates.redis_streams.log import RedisStreamsLog, RedisStreamsOptions

        streams = RedisStreamsOptions.of_url(config.address) if scheme else RedisStreamsOptions(config.address)
        return RedisStreamsLog(replace(streams, access=config.redis_access(streams.access)))
    return open_update_log(config.address, create=create)


def _scheme_of(url: str) -> str:
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def _directory_of(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise ValueError(f"update log {url}: give file:///DIRECTORY, of this machine")
    return Path(unquote(parts.path))


def _kafka(options: KafkaOptions) -> UpdateLog:
    from hebe.embeddings.updates.kafka.log import KafkaLog

    return KafkaLog(options)
