"""A partition of an update log in Redis: its keys, and the steps on them that must not be torn, as Lua scripts.

    hebe:updates:{MODEL/TABLE/PARTITION}:log         stream; an entry has p payload, d digest, t milliseconds, b bytes
                                        :end         hash; last entry's number, digest and b, first's number, gone b
                                        :bell        stream of the last number alone: readers block on it
                                        :committed   hash; by reader "OFFSET TIME_MS": what it reported, and when

The braces put all keys of a partition into one slot of a cluster. Entry `0-N` has offset N; numbers have no holes, and
begin with the microseconds of the clock, so that those of a log that was lost and made anew are larger. Whoever reads
on shows the digest of the last entry that it read: a log that went back (restored from an older copy, emptied) is
found out even when it has grown again. Numbers stay below 2**53, which Lua's are exact to.

An entry's b counts the payloads' bytes of it and all before it, so that what a partition keeps is a difference.

What a reader has yet to apply is not trimmed, unless its report is older than an expiry: then it is gone. The script
that appends drops such reports, and those without a time, which are of consumer groups of older versions.

A Redis whose memory is used up refuses what may take more, but neither what removes something nor what follows that in
a script: so scripts of those who read begin with an HDEL. They take next to nothing, and only they make room again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hebe.embeddings.redis.layout import Command, Reply
from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.contract import Topic, TopicPartition
from hebe.embeddings.updates.limits import MOST_PARTITIONS

if TYPE_CHECKING:
    from hebe.embeddings.redis.nodes import RedisNodes

_PREFIX = b"hebe:updates:"
_NOW = b"""
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

_APPEND = (
    _NOW
    + b"""
local size, most, most_bytes, age_ms = #ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local log_end = redis.call('HMGET', KEYS[2], 'last', 'bytes', 'gone')
local last, bytes, gone = log_end[1], tonumber(log_end[2] or 0) + size, tonumber(log_end[3] or 0)
local id = last and string.format('%.0f', last + 1) or clock[1] .. string.format('%06d', clock[2])
local free, readers, reports = tonumber(id), 0, redis.call('HGETALL', KEYS[4])
for place = 1, #reports, 2 do
    local offset, time_ms = string.match(reports[place + 1], '^(%d+) (%d+)$')
    if offset and now_ms - time_ms <= tonumber(ARGV[7]) then
        readers = readers + 1
        if ARGV[6] ~= '1' then free = math.min(free, tonumber(offset)) end
    elseif id % 16 == 0 then
        redis.call('HDEL', KEYS[4], reports[place])
    end
end
local function trim(steps, must_go)
    local freed = 0
    for _ = 1, steps do
        local entry = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
        if not entry then break end
        local number, fields = tonumber(string.match(entry[1], '%d+$')), {}
        for place = 1, #entry[2], 2 do fields[entry[2][place]] = entry[2][place + 1] end
        local own = #(fields.p or '')
        gone = math.max(gone, (tonumber(fields.b) or 0) - own)
        if number >= free or not must_go(tonumber(fields.t) or 0, freed) then break end
        redis.call('XTRIM', KEYS[1], 'MINID', string.format('0-%.0f', number + 1))
        gone, freed = math.max(gone, tonumber(fields.b) or 0), freed + own
    end
    return freed
end
if id % 16 == 0 then
    if most > 0 then
        local oldest = math.max(0, math.min(free, id - most + 1))
        redis.call('XTRIM', KEYS[1], 'MINID', '~', string.format('0-%.0f', oldest))
    end
    if age_ms > 0 then trim(64, function(sent_ms) return now_ms - sent_ms >= age_ms end) end
end
if most_bytes > 0 and bytes - gone > most_bytes then
    trim(1000, function() return bytes - gone > most_bytes end)
end
local bytes_text = string.format('%.0f', bytes)
local function add(call)
    return call('XADD', KEYS[1], '0-' .. id, 'p', ARGV[1], 'd', ARGV[2], 't', string.format('%.0f', now_ms), 'b',
        bytes_text)
end
local added = add(redis.pcall)
if type(added) == 'table' and added.err then
    if not string.find(added.err, 'OOM', 1, true) then return added end
    if readers == 0 and ARGV[6] ~= '1' then return 2 end
    if trim(1000, function(_, freed) return freed < size end) == 0 then return 2 end
    add(redis.call)
end
redis.call('HSET', KEYS[2], 'last', id, 'digest', ARGV[2], 'bytes', bytes_text, 'gone', string.format('%.0f', gone))
if not last then redis.call('HSET', KEYS[2], 'first', id) end
redis.call('XADD', KEYS[3], 'MAXLEN', '1', '0-' .. id, 'b', '1')
return last and 0 or 1
"""
)

_READ = b"""
local log_end = redis.call('HMGET', KEYS[2], 'last', 'digest')
local last, position, digest = tonumber(log_end[1] or 0), tonumber(ARGV[1]), ARGV[2]
if last < position or (last == position and digest ~= '' and digest ~= log_end[2]) then return {'back'} end
local found = {}
if last > position then
    found = redis.call('XRANGE', KEYS[1], '0-' .. ARGV[1], '+', 'COUNT', ARGV[3] + 1)
end
local answer, bytes = {'on'}, 0
for _, entry in ipairs(found) do
    local number = tonumber(string.match(entry[1], '^0%-(%d+)$'))
    if not number then break end
    local fields = {}
    for place = 1, #entry[2], 2 do fields[entry[2][place]] = entry[2][place + 1] end
    if number == position then
        if digest ~= '' and fields.d ~= digest then return {'back'} end
    else
        local payload = fields.p or ''
        if bytes > 0 and bytes + #payload > tonumber(ARGV[4]) or #answer > tonumber(ARGV[3]) then break end
        bytes = bytes + #payload
        local size = fields.p and #payload or -1
        if size > tonumber(ARGV[5]) then payload = '' end
        answer[#answer + 1] = {string.format('%.0f', number), fields.d or '', payload, size}
    end
end
if last > position and #answer == 1 then return {'empty', string.format('%.0f', last), log_end[2]} end
return answer
"""

_REPORT = (
    _NOW
    + b"""
local last = redis.call('HGET', KEYS[2], 'last')
if tonumber(ARGV[2]) > tonumber(last or 0) then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', now_ms))
return 1
"""
)

_REPORTS = (
    _NOW
    + b"""
local reports, found = redis.call('HGETALL', KEYS[1]), {}
for place = 1, #reports, 2 do
    local offset, time_ms = string.match(reports[place + 1], '^(%d+) (%d+)$')
    if offset and now_ms - time_ms <= tonumber(ARGV[1]) then
        found[#found + 1] = reports[place]
        found[#found + 1] = offset
    end
end
return found
"""
)

_IDENTITY = b"""
local known = redis.call('GET', KEYS[1])
if known then return known end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
"""


def digest_of(payload: bytes) -> bytes:
    """By which an entry is known again."""
    return hashlib.blake2b(payload, digest_size=8).hexdigest().encode()


class PartitionCommands:
    """The commands on one partition, ready to be sent; what they answer stands with each."""

    def __init__(self, at: TopicPartition) -> None:
        tag = f"{at.model}/{at.table}/{at.partition}".encode()
        prefix = _PREFIX + b"{" + tag + b"}:"
        self._log, self._end, self.bell = prefix + b"log", prefix + b"end", prefix + b"bell"
        self._committed = prefix + b"committed"

    def append(
        self,
        payload: bytes,
        most_entries: int,
        most_bytes: int,
        most_age_ms: int,
        trim_uncommitted: bool,
        report_expiry_ms: int,
    ) -> Command:
        """1 if it is the first of the log, else 0; 2 if Redis has no memory left for it, and there is nothing that all
        readers have applied to make room.
        """
        limits = b"%d" % most_entries, b"%d" % most_bytes, b"%d" % most_age_ms, b"1" if trim_uncommitted else b"0"
        keys = self._log, self._end, self.bell, self._committed
        return self._eval(_APPEND, keys, payload, digest_of(payload), *limits, b"%d" % report_expiry_ms)

    def read(self, position: int, digest: bytes, count: int, most_bytes: int, most_entry_bytes: int) -> Command:
        """`[b"on", [number, digest, payload, size]...]`, or `[b"back"]`: the log does not have what was read last;
        `[b"empty", last, digest]`: what followed is gone. Size -1 is an entry without payload; one of more than
        `most_entry_bytes` comes without.
        """
        limits = b"%d" % count, b"%d" % most_bytes, b"%d" % most_entry_bytes
        return self._eval(_READ, (self._log, self._end), b"%d" % position, digest, *limits)

    def report(self, reader: bytes, offset: int) -> Command:
        """1; 0 if the log does not have that offset, and nothing is reported."""
        return self._eval(_REPORT, (self._committed, self._end), reader, b"%d" % offset)

    def reports(self, expiry_ms: int) -> Command:
        """`[reader, offset, ...]` of the readers whose reports are no older than that; 0 of one that has nothing."""
        return self._eval(_REPORTS, (self._committed,), b"%d" % expiry_ms)

    def end(self) -> Command:
        """`[last number, digest]`."""
        return Command(self._end, (b"HMGET", self._end, b"last", b"digest"))

    def first(self) -> Command:
        """Number of the first entry that there ever was; None where there was none, or it came before this was kept."""
        return Command(self._end, (b"HGET", self._end, b"first"))

    def length(self) -> Command:
        """How many entries there are."""
        return Command(self._log, (b"XLEN", self._log))

    def _eval(self, script: bytes, keys: tuple[bytes, ...], *arguments: bytes) -> Command:
        return Command(self._log, (b"EVAL", script, b"%d" % len(keys), *keys, *arguments))


class TopicCommands:
    """The commands on what is kept of a topic as a whole."""

    def __init__(self, topic: Topic) -> None:
        tag = f"{topic.model}/{topic.table}".encode()
        self._prefix = _PREFIX + b"{" + tag + b"}:"

    def set_partitions(self, count: int) -> Command:
        """Anything: it sets their number where there is none."""
        return self._command(b"SET", self._prefix + b"partitions", b"%d" % count, b"NX")

    def partitions(self) -> Command:
        """Their number, or None."""
        return self._command(b"GET", self._prefix + b"partitions")

    def _command(self, *arguments: bytes) -> Command:
        return Command(self._prefix, arguments)


class LogCommands:
    """The commands on what is kept of the log as a whole."""

    _IDENTITY, _TOPICS = _PREFIX + b"{log}:identity", _PREFIX + b"{log}:topics"

    @classmethod
    def identity(cls, proposed: bytes) -> Command:
        """The log's identity, which is the proposed one if it had none."""
        return Command(cls._IDENTITY, (b"EVAL", _IDENTITY, b"1", cls._IDENTITY, proposed))

    @classmethod
    def known_identity(cls) -> Command:
        """The log's identity, None if it has none: it was emptied, or never used."""
        return Command(cls._IDENTITY, (b"GET", cls._IDENTITY))

    @classmethod
    def has_topic(cls, topic: Topic) -> Command:
        """1 if it is among `topics`, else 0."""
        return Command(cls._TOPICS, (b"SISMEMBER", cls._TOPICS, f"{topic.model}/{topic.table}".encode()))

    @classmethod
    def add_topic(cls, topic: Topic) -> Command:
        """Anything."""
        return Command(cls._TOPICS, (b"SADD", cls._TOPICS, f"{topic.model}/{topic.table}".encode()))

    @classmethod
    def topics(cls) -> Command:
        """MODEL/TABLE of each topic."""
        return Command(cls._TOPICS, (b"SMEMBERS", cls._TOPICS))


def wait_command(bells: list[tuple[PartitionCommands, int]], wait_ms: int) -> Command:
    """Answers as soon as one of the partitions has more than the number beside it. Not for a cluster of servers."""
    names = [part.bell for part, _ in bells]
    numbers = [b"0-%d" % position for _, position in bells]
    head = b"XREAD", b"COUNT", b"1", b"BLOCK", b"%d" % wait_ms, b"STREAMS"
    return Command(names[0], (*head, *names, *numbers))


def int_of(reply: Reply) -> int:
    """A number that Redis answers, or 0 for none. Raises `StoreError` for anything else."""
    if reply is None or reply == b"":
        return 0
    if isinstance(reply, int):
        return reply
    if isinstance(reply, bytes) and reply.isdigit():
        return int(reply)
    raise StoreError(f"the update log in Redis is damaged: {str(reply)[:100]} where a number should be")


def count_of(reply: Reply) -> int:
    """How many partitions a topic has, 0 if it does not exist. Raises `StoreError` for what is no such number."""
    count = int_of(reply)
    if count > MOST_PARTITIONS:
        raise StoreError(f"the update log in Redis is damaged: a topic of {count} partitions")
    return count


def partition_lags(nodes: RedisNodes, committed: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """How many messages each partition has after the committed offset (0: none is committed)."""
    parts = [PartitionCommands(at) for at in committed]
    answers = nodes.execute([command for part in parts for command in (part.end(), part.length())])
    lags = {}
    for place, (at, offset) in enumerate(committed.items()):
        end, length = answers[2 * place : 2 * place + 2]
        last = int_of(end[0]) if isinstance(end, list) and end else 0
        lags[at] = max(0, min(int_of(length), last - offset))
    return lags
