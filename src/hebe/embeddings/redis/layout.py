r"""How a volatile store lies in Redis: the names of its Redis keys, and what is asked of Redis for a batch of keys.

For each partition of a table, up to four Redis keys that share a hash tag, and so a slot and a cluster node:

    hebe:{NAMESPACE/TABLE/PARTITION.SALT}:rows     hash: key -> row, as the bytes of an int64 and of float32,
                                                   little-endian; and seal, where Redis alone has the rows
    hebe:{NAMESPACE/TABLE/PARTITION.SALT}:layout   string: version of this layout, dim, partitions, overflow policy
    hebe:{NAMESPACE/TABLE/PARTITION.SALT}:run      string: `run_id` of the Redis process that has had all that was sent
    hebe:{NAMESPACE/TABLE/PARTITION.SALT}:times    with evict_oldest, sorted set: key -> last access in microseconds
                                                   of Unix time
    hebe:{NAMESPACE/TABLE/PARTITION.SALT}:counts   with evict_least_used, sorted set: key -> accesses; its fraction
                                                   grows with the time of the last one

Names are percent-encoded. The salt spreads a table's partitions evenly over the slots. A hash of rows takes less memory
than Redis keys of their own (measured: 197 bytes beside a row of 512, against 229), and is counted, walked and sampled
for itself.

The seal is a field of the hash, empty until all rows are in, and then the layout: a Redis that evicts keys by itself
(`maxmemory-policy`) may take the rows and leave the layout, but not the rows and leave the seal. To look around (`-c`
for a cluster):

    redis-cli --scan --pattern 'hebe:{*'
    redis-cli GET 'hebe:{ctr/users/0.3}:layout'
    redis-cli HLEN 'hebe:{ctr/users/0.3}:rows'                       # the seal included
    redis-cli --quoted-input HEXISTS '"hebe:{ctr/users/0.3}:rows"' '"\x05\x00\x00\x00\x00\x00\x00\x00"'
    redis-cli ZRANGE 'hebe:{ctr/users/0.3}:times' 0 9 WITHSCORES     # what is evicted next

To change dim, partitions or policy, delete the table's keys, or use another namespace.

A `Command` is what is asked of Redis, and a `Reply` what it answers, apart from the client library that carries both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, repeat
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from hebe.embeddings.options import OverflowPolicy, VolatileOptions

KEY_BYTES = 8

Reply = int | bytes | None | list["Reply"]


@dataclass(frozen=True, slots=True)
class Command:
    """One command. All its Redis keys are in the hash slot of `key`."""

    key: bytes
    arguments: tuple[bytes, ...]


def elements(values: npt.NDArray[np.generic]) -> list[bytes]:
    """The little-endian bytes of each item of `values` `[n]`, or of each of its rows if they are `[n, dim]`."""
    little_endian = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    size = little_endian.itemsize * (little_endian.shape[1] if little_endian.ndim == 2 else 1)
    taken: list[bytes] = little_endian.view(f"V{size}").reshape(-1).tolist()
    return taken


def pairs(first: Iterable[bytes], second: Iterable[bytes]) -> Sequence[bytes]:
    """One of each in turn, until one of them ends."""
    return list(chain.from_iterable(zip(first, second)))  # noqa: B905 - one of them may be `repeat`


VERSION = 1
COMMAND_KEYS = 2048
"""Keys of one command at most: others' commands come in between. Redis's Lua takes up to 8,000 values at once."""
EVICTED_AT_ONCE = 1000
_SCANNED_AT_ONCE = 1000
_SPREAD_PARTITIONS = 256

_UPDATE = b"""
local layout = redis.call('GET', KEYS[2])
if layout and layout ~= ARGV[1] then return layout end
local present = {}
for i = 2, #ARGV, 2 do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then
    present[#present + 1] = ARGV[i]
    present[#present + 1] = ARGV[i + 1]
  end
end
if #present > 0 then redis.call('HSET', KEYS[1], unpack(present)) end
return #present / 2
"""
_COUNT = b"""
local keys, changed = {}, {}
for i = 2, #ARGV, 2 do keys[#keys + 1] = ARGV[i] end
for i, score in ipairs(redis.call('ZMSCORE', KEYS[1], unpack(keys))) do
  if score then
    changed[#changed + 1] = string.format('%.17g', math.floor(score) + ARGV[2 * i + 1] + ARGV[1])
    changed[#changed + 1] = keys[i]
  end
end
if #changed > 0 then redis.call('ZADD', KEYS[1], 'XX', unpack(changed)) end
return #changed / 2
"""
_EVICT = b"""
local sealed = redis.call('HEXISTS', KEYS[1], 'seal')
local excess = math.min(redis.call('HLEN', KEYS[1]) - sealed - ARGV[1], tonumber(ARGV[2]))
if excess > 0 then
  local victims = {}
  if KEYS[2] then
    local popped = redis.call('ZPOPMIN', KEYS[2], excess)
    for i = 1, #popped, 2 do victims[#victims + 1] = popped[i] end
  end
  if #victims == 0 then
    for _, field in ipairs(redis.call('HRANDFIELD', KEYS[1], excess + sealed)) do
      if field ~= 'seal' and #victims < excess then victims[#victims + 1] = field end
    end
  end
  redis.call('HDEL', KEYS[1], unpack(victims))
end
return redis.call('HLEN', KEYS[1]) - sealed
"""
_SIZE = b"return redis.call('HLEN', KEYS[1]) - redis.call('HEXISTS', KEYS[1], 'seal')"
_SEAL = b"""
if redis.call('HEXISTS', KEYS[1], 'seal') == 0 then return 0 end
redis.call('HSET', KEYS[1], 'seal', ARGV[1])
return 1
"""
_SCAN = b"""
local scanned = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local keys = {}
for i = 1, #scanned[2], 2 do
  if #scanned[2][i] == 8 then keys[#keys + 1] = scanned[2][i] end
end
return {scanned[1], table.concat(keys)}
"""


class LayoutRule(Enum):
    """What it means that a partition has no layout."""

    CLAIMED = "no row was put into it yet; the first one brings it"
    AWAITED = "its rows are being put in: they are whole once it is sealed"
    REQUIRED = "its rows were lost"


class PartitionCommands:
    """What is asked of Redis for one partition of one table.

    Keys and rows are their little-endian bytes (`elements`): a batch is made into bytes at once.
    """

    def __init__(self, namespace: str, table: str, partition: int, dim: int, options: VolatileOptions) -> None:
        tag = _tag(namespace, table, partition, options.num_partitions)
        self.pattern = f"hebe:{{{quote(namespace, safe='')}/{quote(table, safe='')}/*"
        self.rows = b"hebe:{%s}:rows" % tag
        self.layout_key = b"hebe:{%s}:layout" % tag
        self._run_key = b"hebe:{%s}:run" % tag
        self.layout = (
            f"hebe-{VERSION} dim={dim} num_partitions={options.num_partitions} "
            f"overflow_policy={options.overflow_policy}"
        ).encode()
        self._policy = options.overflow_policy
        self._access = {
            OverflowPolicy.EVICT_OLDEST: b"hebe:{%s}:times" % tag,
            OverflowPolicy.EVICT_LEAST_USED: b"hebe:{%s}:counts" % tag,
        }.get(options.overflow_policy, b"")

    def claim(self) -> list[Command]:
        """Write the layout if there is none, then read it."""
        return [self._command(b"SETNX", self.layout_key, self.layout), self.read_layout()]

    def begin(self) -> Command:
        """Its rows are about to be put in, from none."""
        return self._command(b"HSET", self.rows, b"seal", b"")

    def seal(self) -> list[Command]:
        """Its rows are whole: write the layout, and as the seal; the last reply is 0 if it lost any since `begin`."""
        return [
            self._command(b"SET", self.layout_key, self.layout),  # which servers of an older version go by
            self._command(b"EVAL", _SEAL, b"1", self.rows, self.layout),
        ]

    def read_seal(self) -> Command:
        """The layout that its rows were sealed with; b"" if they are not yet, None if they are lost."""
        return self._command(b"HGET", self.rows, b"seal")

    def read_process(self) -> Command:
        """What Redis tells of the process that has the partition, its `run_id` among it."""
        return self._command(b"INFO", b"server")

    def read_memory(self) -> Command:
        """What Redis tells of the memory of that process, its `maxmemory` among it."""
        return self._command(b"INFO", b"memory")

    def read_run(self) -> Command:
        """The run that was noted, or None."""
        return self._command(b"GET", self._run_key)

    def note_run(self, run: bytes) -> Command:
        """Note that what the process of this run has is as new as it gets."""
        return self._command(b"SET", self._run_key, run)

    def clear(self) -> Command:
        """Remove all there is of it; the memory is given back in Redis' background."""
        keys = [self.rows, self.layout_key, self._run_key, *([self._access] if self._access else [])]
        return self._command(b"UNLINK", *keys)

    def read_layout(self) -> Command:
        """The layout of what is there, or None."""
        return self._command(b"GET", self.layout_key)

    def query(self, keys: Sequence[bytes]) -> Iterator[Command]:
        """The rows of `keys`, some with each reply: its bytes or None for each key."""
        return (self._command(b"HMGET", self.rows, more=keys[part]) for part in _parts(len(keys)))

    def insert(self, keys: Sequence[bytes], rows: Sequence[bytes], now_s: float) -> Iterator[Command]:
        """Rows under keys, as accessed at `now_s`; the last reply is the partition's size."""
        for part in _parts(len(keys)):
            yield self._command(b"HSET", self.rows, more=pairs(keys[part], rows[part]))
            if self._policy is OverflowPolicy.EVICT_OLDEST:
                yield self._scored(keys[part], b"GT", _microseconds(now_s))
            elif self._policy is OverflowPolicy.EVICT_LEAST_USED:
                yield self._scored(keys[part], b"NX", b"%.17g" % (1 + _fraction(now_s)))
        yield self.size()

    def update(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> Iterator[Command]:
        """Rows under those keys that are present; replies with how many were, or with the layout if it is another.

        Keys are distinct.
        """
        for part in _parts(len(keys)):
            more = pairs(keys[part], rows[part])
            yield self._command(b"EVAL", _UPDATE, b"2", self.rows, self.layout_key, self.layout, more=more)

    def delete(self, keys: Sequence[bytes]) -> Iterator[Command]:
        """Remove keys; replies with how many were present."""
        return (self._command(b"HDEL", self.rows, more=keys[part]) for part in _parts(len(keys)))

    def forget(self, keys: Sequence[bytes]) -> Iterator[Command]:
        """Drop what is kept about the accesses of keys."""
        for part in _parts(len(keys)) if self._access else ():
            yield self._command(b"ZREM", self._access, more=keys[part])

    def touch(self, keys: Sequence[bytes], counts: Sequence[int], now_s: float) -> Iterator[Command]:
        """Note an access at `now_s` of those of the distinct `keys` that are present, `counts` times each."""
        for part in _parts(len(keys)):
            if self._policy is OverflowPolicy.EVICT_OLDEST:
                yield self._scored(keys[part], b"XX", b"GT", _microseconds(now_s))
            elif self._policy is OverflowPolicy.EVICT_LEAST_USED:
                more = pairs(keys[part], [b"%d" % count for count in counts[part]])
                yield self._command(b"EVAL", _COUNT, b"1", self._access, b"%.17g" % _fraction(now_s), more=more)

    def evict(self, target: int) -> Command:
        """Evict rows above `target`, `EVICTED_AT_ONCE` at most; replies with the size then.

        Several servers may do so at once: each step sees what is there, and none goes below the target.
        """
        keys = [self.rows, self._access] if self._access else [self.rows]
        return self._command(b"EVAL", _EVICT, b"%d" % len(keys), *keys, b"%d" % target, b"%d" % EVICTED_AT_ONCE)

    def scan(self, cursor: bytes) -> Command:
        """Some keys from `cursor` on (b"0" first): replies with the next cursor (b"0" last) and the keys' bytes."""
        return self._command(b"EVAL", _SCAN, b"1", self.rows, cursor, b"%d" % _SCANNED_AT_ONCE)

    def size(self) -> Command:
        """Replies with the number of keys."""
        return self._command(b"EVAL", _SIZE, b"1", self.rows)

    def _scored(self, names: Sequence[bytes], *how: bytes) -> Command:
        *flags, score = how
        return self._command(b"ZADD", self._access, *flags, more=pairs(repeat(score), names))

    def _command(self, *arguments: bytes, more: Sequence[bytes] = ()) -> Command:
        return Command(self.rows, (*arguments, *more))


def _tag(namespace: str, table: str, partition: int, num_partitions: int) -> bytes:
    """The hash tag of a partition: with the first salt that brings it into its share of the slots."""
    from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot  # of an optional package

    name = f"{quote(namespace, safe='')}/{quote(table, safe='')}/{partition}"
    if num_partitions > _SPREAD_PARTITIONS:  # chance spreads them well enough
        return f"{name}.0".encode()
    first, last = (each * REDIS_CLUSTER_HASH_SLOTS // num_partitions for each in (partition, partition + 1))
    salt = 0
    while not first <= key_slot(f"{name}.{salt}".encode()) < last:
        salt += 1
    return f"{name}.{salt}".encode()


def _parts(count: int) -> Iterator[slice]:
    return (slice(first, first + COMMAND_KEYS) for first in range(0, count, COMMAND_KEYS))


def _microseconds(now_s: float) -> bytes:
    return b"%d" % int(now_s * 1e6)


def _fraction(now_s: float) -> float:
    """Unix time, whole seconds, as a fraction: of two keys with as many accesses the earlier one is evicted."""
    return int(now_s) / 2**32
