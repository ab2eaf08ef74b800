r"""How a volatile store lies in Redis: the names of its Redis keys, and what is asked of Redis for a batch of keys.

For each partition of a table, up to two Redis keys that share a hash tag, and so a slot and a cluster node:

    hebe2:{NAMESPACE/TABLE/PARTITION.SALT}:rows     hash: key -> sealed row (`kernels.lookup.sealed_rows`), the key as
                                                    the little-endian bytes of an int64; and the field `state`
    hebe2:{NAMESPACE/TABLE/PARTITION.SALT}:times    with evict_oldest, sorted set: key -> last access in microseconds
                                                    of Unix time
    hebe2:{NAMESPACE/TABLE/PARTITION.SALT}:counts   with evict_least_used, sorted set: key -> accesses; its fraction
                                                    grows with the time of the last one

Names are percent-encoded. The salt spreads a table's partitions evenly over the slots. A hash of rows takes less memory
than Redis keys of their own, and is counted, walked and sampled for itself.

The `state` of a partition (`PartitionState`) lives and dies with its rows: the layout, how far its rows are put in,
and by partition of the update log the position up to which updates have been written. Positions order all that is
written:

    update, delete   of a key that is there: unless its row has a later position; of one that is not: only if the
                     partition's position is earlier. So whoever writes late, or twice, changes nothing.
    fill             only where the key is absent, and only a row whose position is the partition's or later: what a
                     server that lags still has, and was deleted since, does not come back.

To look around (`-c` for a cluster):

    redis-cli --scan --pattern 'hebe2:{*'
    redis-cli HGET 'hebe2:{ctr/users/0.3}:rows' state
    redis-cli HLEN 'hebe2:{ctr/users/0.3}:rows'                      # the state included
    redis-cli --quoted-input HEXISTS '"hebe2:{ctr/users/0.3}:rows"' '"\x05\x00\x00\x00\x00\x00\x00\x00"'
    redis-cli ZRANGE 'hebe2:{ctr/users/0.3}:times' 0 9 WITHSCORES    # what is evicted next

To change dim, partitions or policy, delete the table's keys, or use another namespace.

A `Command` is what is asked of Redis, and a `Reply` what it answers, apart from the client library that carries both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, repeat
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from hebe.embeddings.options import OverflowPolicy, VolatileOptions
from hebe.embeddings.store import KeyArray
from hebe.kernels.lookup.sealed_rows import FORMAT

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


COMMAND_KEYS = 2048
"""The most keys of one command, but for updates: others' commands come in between. Redis's Lua takes up to 8,000 values
at once.
"""
EVICTED_AT_ONCE = 1000
_SCANNED_AT_ONCE = 1000
_SPREAD_PARTITIONS = 256
PIECE_BYTES = 8
NOTHING = -1
"""The position of rows that no update has reached: the model's own."""


class Progress(IntEnum):
    """How far the rows of a partition are put in."""

    BEGUN = 0
    """Some of the model's rows are there."""
    FILLED = 1
    """All of them are; updates follow."""
    SEALED = 2
    """Updates are there too, as far as the log had any: queries may be answered. At once where a level 3 is below."""


@dataclass(frozen=True, slots=True, eq=False)
class PartitionState:
    """The field `state`: `marks` int64 `[log partitions]` are positions with half a step between two. (With each lies
    the latest position of a row, for the scripts alone.)

    2 * p: all updates up to offset p have been written. 2 * p - 1: all before p have, and p in part. `piece`, of
    `PIECE_BYTES`, names the part that was written last of any: the mark does not say which parts there are.
    """

    progress: Progress
    marks: KeyArray
    piece: bytes = bytes(PIECE_BYTES)

    @property
    def complete(self) -> KeyArray:
        """By log partition, the offset up to which all updates have been written; -1: none has."""
        return self.marks >> 1

    def encoded(self, layout: bytes) -> bytes:
        """The field of a partition of that layout."""
        numbers = np.stack([self.marks, np.full(len(self.marks), NOTHING)], axis=1)
        return layout + b"\0%d" % self.progress + self.piece + numbers.astype("<i8").tobytes()

    @classmethod
    def of(cls, field: bytes, layout: bytes) -> PartitionState | None:
        """What a field says; None if it is of another layout."""
        head = len(layout) + 2 + PIECE_BYTES
        if not field.startswith(layout + b"\0") or len(field) < head or (len(field) - head) % 16:
            return None
        progress, piece = field[len(layout) + 1 : len(layout) + 2], field[head - PIECE_BYTES : head]
        if progress not in (b"0", b"1", b"2"):
            return None
        numbers = np.frombuffer(field, "<i8", offset=head).astype(np.int64)
        return cls(Progress(int(progress)), numbers[::2].copy(), piece)


def mark_of(position: int) -> int:
    """Of a partition that has all updates up to offset `position`."""
    return 2 * position


_STATE = b"""
local layout, count = ARGV[1], tonumber(ARGV[2])
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return 'gone' end
if string.sub(state, 1, #layout + 1) ~= layout .. '\\0' then return state end
local head, before = #layout + 10, state
local function piece() return string.sub(state, head - 7, head) end
local function mark(number)
  if #state < head + 16 * number + 16 then return -2 end
  return (struct.unpack('<i8', state, head + 16 * number + 1))
end
local function newest(number)
  if #state < head + 16 * number + 16 then return -1 end
  return (struct.unpack('<i8', state, head + 16 * number + 9))
end
local function raise(number, to, position)
  to, position = math.max(to, mark(number)), math.max(position, newest(number))
  while #state < head + 16 * count do state = state .. struct.pack('<i8i8', -2, -1) end
  local first = head + 16 * number
  state = string.sub(state, 1, first) .. struct.pack('<i8i8', to, position) .. string.sub(state, first + 17)
end
local function save() if state ~= before then redis.call('HSET', KEYS[1], 'state', state) end end
local function progress() return string.sub(state, #layout + 2, #layout + 2) end
local function other_log() return count > 0 and #state > head and #state ~= head + 16 * count end
local function put(names, rows)
  if #rows == 0 then return end
  redis.call('HSET', KEYS[1], unpack(rows))
  if KEYS[2] then redis.call('ZADD', KEYS[2], unpack(names)) end
end
"""
"""What scripts on a state begin with: ARGV has the layout and the number of log partitions, 0 if that is not known."""

_APPLY = (
    _STATE
    + b"""
local number, known, to, low, high = unpack(ARGV, 3, 7)
number, known, to, low, high = tonumber(number), tonumber(known), tonumber(to), tonumber(low), tonumber(high)
local expected, new_piece, score = ARGV[8], ARGV[9], ARGV[11]
local names, offsets, sealed = ARGV[12], ARGV[13], ARGV[14]
local reached, size = mark(number), 8 * #sealed / math.max(#names, 1)
if progress() == '0' or other_log() or reached < known then return 'lost' end
if expected ~= '' and expected ~= piece() then return 'lost' end
local blind, applied, sub = low >= newest(number) and 2 * low > reached, 0, string.sub
local function newer_places(first, last)
  local keys, chosen = {}, {}
  for at = first, last, 8 do keys[#keys + 1] = sub(names, at + 1, at + 8) end
  for i, row in ipairs(redis.call('HMGET', KEYS[1], unpack(keys))) do
    local offset, newer = struct.unpack('<i8', offsets, first + 8 * i - 7), size > 0
    if row then newer = #row < 16 or offset >= struct.unpack('<i8', row)
    else newer = newer and 2 * offset > reached end
    if newer then chosen[#chosen + 1] = first + 8 * i - 8 end
  end
  return chosen
end
for first = 0, #names - 1, 8 * 2000 do
  local last = math.min(first + 8 * 2000, #names) - 8
  local chosen = not blind and newer_places(first, last)
  local count, scored, changed = blind and (last - first) / 8 + 1 or #chosen, {ARGV[10]}, {}
  for i = 1, count do
    local at = chosen and chosen[i] or first + 8 * i - 8
    local key = sub(names, at + 1, at + 8)
    if size > 0 then
      local row = at / 8 * size
      changed[2 * i - 1], changed[2 * i] = key, sub(sealed, row + 1, row + size)
    else
      changed[i] = key
    end
    if KEYS[2] then scored[2 * i], scored[2 * i + 1] = score, key end
  end
  if size > 0 then
    put(scored, changed)
    applied = applied + count
  elseif count > 0 then
    applied = applied + redis.call('HDEL', KEYS[1], unpack(changed))
    if KEYS[2] then redis.call('ZREM', KEYS[2], unpack(changed)) end
  end
end
raise(number, to, high)
if new_piece ~= '' then state = string.sub(state, 1, head - 8) .. new_piece .. string.sub(state, head + 1) end
save()
return {applied, redis.call('HLEN', KEYS[1]) - 1}
"""
)
"""Where no row of the log partition can be newer than any of the updates, rows are not even read."""

_FILL = (
    _STATE
    + b"""
local keys = {}
for i = 5, #ARGV, 3 do keys[#keys + 1] = ARGV[i] end
if other_log() then return {0, redis.call('HLEN', KEYS[1]) - 1, #keys} end
local rows, scored, refused, tops = {}, {ARGV[3]}, 0, {}
for i, row in ipairs(redis.call('HMGET', KEYS[1], unpack(keys))) do
  local new = ARGV[3 * i + 4]
  if not row then
    local number, position = tonumber(ARGV[3 * i + 3]), struct.unpack('<i8', new)
    if 2 * position >= mark(number) and (count > 0 or #state > head or position < 0) then
      tops[number] = math.max(position, tops[number] or -1)
      rows[#rows + 1], rows[#rows + 2] = keys[i], new
      scored[#scored + 1], scored[#scored + 2] = ARGV[4], keys[i]
    else
      refused = refused + 1
    end
  end
end
put(scored, rows)
for number, position in pairs(tops) do
  if position > newest(number) then raise(number, -2, position) end
end
save()
return {#rows / 2, redis.call('HLEN', KEYS[1]) - 1, refused}
"""
)
_RAISE = (
    _STATE
    + b"""
if progress() == '0' or other_log() or (ARGV[3] ~= '' and ARGV[3] ~= piece()) then return 'lost' end
for i = 4, #ARGV, 3 do
  if mark(tonumber(ARGV[i])) < tonumber(ARGV[i + 1]) then return 'lost' end
end
for i = 4, #ARGV, 3 do raise(tonumber(ARGV[i]), tonumber(ARGV[i + 2]), -1) end
save()
return {1}
"""
)
_ADVANCE = (
    _STATE
    + b"""
local from, to = ARGV[3], ARGV[4]
local at = #layout + 2
if progress() >= to then return {1} end
if progress() ~= from or redis.call('HLEN', KEYS[1]) - 1 < tonumber(ARGV[5]) then return {0} end
redis.call('HSET', KEYS[1], 'state', string.sub(state, 1, at - 1) .. to .. string.sub(state, at + 1))
return {1}
"""
)
_REMOVE = b"""
local removed = 0
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    removed = removed + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return removed
"""
_UPDATE = b"""
local present = {}
for i = 1, #ARGV, 2 do
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
local stated = redis.call('HEXISTS', KEYS[1], 'state')
local excess = math.min(redis.call('HLEN', KEYS[1]) - stated - ARGV[1], tonumber(ARGV[2]))
if excess > 0 then
  local victims = {}
  if KEYS[2] then
    local popped = redis.call('ZPOPMIN', KEYS[2], excess)
    for i = 1, #popped, 2 do victims[#victims + 1] = popped[i] end
  end
  if #victims == 0 then
    for _, field in ipairs(redis.call('HRANDFIELD', KEYS[1], excess + stated)) do
      if field ~= 'state' and #victims < excess then victims[#victims + 1] = field end
    end
  end
  redis.call('HDEL', KEYS[1], unpack(victims))
end
return redis.call('HLEN', KEYS[1]) - stated
"""
_SIZE = b"return redis.call('HLEN', KEYS[1]) - redis.call('HEXISTS', KEYS[1], 'state')"
_SCAN = b"""
local scanned = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local keys = {}
for i = 1, #scanned[2], 2 do
  if #scanned[2][i] == 8 then keys[#keys + 1] = scanned[2][i] end
end
return {scanned[1], table.concat(keys)}
"""


class PartitionCommands:
    """What is asked of Redis for one partition of one table.

    Keys are their little-endian bytes (`elements`), rows are sealed: a batch is made into bytes at once. Replies of the
    commands on a state are lists of numbers, or b"gone" where there is none, b"lost" where it is behind what the caller
    knows that it had, or the state itself where it is of another layout.
    """

    def __init__(self, namespace: str, table: str, partition: int, dim: int, options: VolatileOptions) -> None:
        tag = _tag(namespace, table, partition, options.num_partitions)
        self.pattern = f"hebe2:{{{quote(namespace, safe='')}/{quote(table, safe='')}/*"
        self.rows = b"hebe2:{%s}:rows" % tag
        self.layout = (
            f"hebe-{FORMAT} dim={dim} num_partitions={options.num_partitions} overflow_policy={options.overflow_policy}"
        ).encode()
        self._policy = options.overflow_policy
        self._access = {
            OverflowPolicy.EVICT_OLDEST: b"hebe2:{%s}:times" % tag,
            OverflowPolicy.EVICT_LEAST_USED: b"hebe2:{%s}:counts" % tag,
        }.get(options.overflow_policy, b"")

    def begin(self, state: PartitionState) -> Command:
        """Give it this state where it has none."""
        return self._command(b"HSETNX", self.rows, b"state", state.encoded(self.layout))

    def read_state(self) -> Command:
        """The field `state`, or None."""
        return self._command(b"HGET", self.rows, b"state")

    def advance(self, progress: Progress, least_rows: int = 0) -> Command:
        """From the step before to `progress`, if it has so many rows; replies [0] where it has not."""
        steps = b"%d" % (progress - 1), b"%d" % progress
        return self._on_state(_ADVANCE, 0, *steps, b"%d" % least_rows)

    def clear(self) -> Command:
        """Remove all there is of it; the memory is given back in Redis' background."""
        return self._command(b"UNLINK", self.rows, *([self._access] if self._access else []))

    def query(self, keys: Sequence[bytes]) -> Iterator[Command]:
        """The rows of `keys`, some with each reply: the field `state`, then bytes or None for each key, all of one
        moment.
        """
        return (self._command(b"HMGET", self.rows, b"state", more=keys[part]) for part in _parts(len(keys)))

    def apply(
        self,
        log_partitions: int,
        log_partition: int,
        marks: tuple[int, int],
        span: tuple[int, int],
        pieces: tuple[bytes, bytes],
        updates: tuple[bytes, bytes, bytes],
        now_s: float,
    ) -> Command:
        """Updates of one log partition, at once: distinct keys, their offsets, and sealed rows or b"" to delete, one
        after the other. `marks`: the one that it must have at least, and the one that it has afterwards, or a later
        one. `span`: the least of the offsets, and the greatest. `pieces`: the state's, b"" for any, and the one that it
        has afterwards, b"" for the same. Replies with how many were applied, and the rows that there are.
        """
        numbers = (b"%d" % number for number in (log_partition, *marks, *span))
        return self._on_state(_APPLY, log_partitions, *numbers, *pieces, *self._scoring(now_s), *updates)

    def fill(self, log_partitions: int, rows: Sequence[bytes], now_s: float) -> Iterator[Command]:
        """(key, log partition, sealed row) in turn, each where it is absent and not older than the partition. None is
        put where updates of another number of `log_partitions` have been written; 0: any. Replies with how many were
        put there, the rows that there are, and how many were too old.
        """
        step = 3 * COMMAND_KEYS
        for first in range(0, len(rows), step):
            yield self._on_state(_FILL, log_partitions, *self._scoring(now_s), more=rows[first : first + step])

    def raise_marks(self, log_partitions: int, piece: bytes, marks: Iterable[tuple[int, int, int]]) -> Command:
        """Of (log partition, the mark that it must have at least, the mark that it has from now on); and the state must
        have that `piece`, b"" for any.
        """
        numbers = [b"%d" % number for each in marks for number in each]
        return self._on_state(_RAISE, log_partitions, piece, more=numbers)

    def remove(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Command:
        """Remove those keys that still have these values; replies with how many."""
        return self._command(b"EVAL", _REMOVE, b"1", self.rows, more=pairs(keys, values))

    def insert(self, keys: Sequence[bytes], rows: Sequence[bytes], now_s: float) -> Iterator[Command]:
        """Rows under keys, whatever is there, as accessed at `now_s`; the last reply is the partition's size."""
        flag, score = self._scoring(now_s)
        for part in _parts(len(keys)):
            yield self._command(b"HSET", self.rows, more=pairs(keys[part], rows[part]))
            if self._access:
                yield self._command(b"ZADD", self._access, flag, more=pairs(repeat(score), keys[part]))
        yield self.size()

    def update(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> Iterator[Command]:
        """Rows under those of distinct keys that are present; replies with how many were."""
        for part in _parts(len(keys)):
            yield self._command(b"EVAL", _UPDATE, b"1", self.rows, more=pairs(keys[part], rows[part]))

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
                scored = pairs(repeat(_microseconds(now_s)), keys[part])
                yield self._command(b"ZADD", self._access, b"XX", b"GT", more=scored)
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

    def _scoring(self, now_s: float) -> tuple[bytes, bytes]:
        """The flag and the score with which keys that are put in now count as accessed."""
        if self._policy is OverflowPolicy.EVICT_LEAST_USED:
            return b"NX", b"%.17g" % (1 + _fraction(now_s))
        return b"GT", _microseconds(now_s)

    def _on_state(self, script: bytes, log_partitions: int, *arguments: bytes, more: Sequence[bytes] = ()) -> Command:
        keys = [self.rows, self._access] if self._access else [self.rows]
        head = b"EVAL", script, b"%d" % len(keys), *keys, self.layout, b"%d" % log_partitions
        return self._command(*head, *arguments, more=more)

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
