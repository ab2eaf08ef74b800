"""A partition of an update log in Redis: its keys, and the steps on them that must not be torn, as Lua scripts.

    hebe:updates:{MODEL/TABLE/PARTITION}:log         stream; an entry has p payload, d digest, t milliseconds, b bytes
                                        :end         hash; last entry's number, digest and b, first's number, gone b
                                        :bell        stream of the last number alone: members block on it
                                        :committed   hash; offset by group, which trimming goes by
                                        :group:GROUP hash; offset, digest, and the lease: token, until

The braces put all keys of a partition into one slot of a cluster. Entry `0-N` has offset N; numbers have no holes, and
begin with the microseconds of the clock, so that those of a log that was lost and made anew are larger. Whoever reads
on shows the digest of the last entry that it read: a log that went back (restored from an older copy, emptied) is
found out even when it has grown again. Numbers stay below 2**53, which Lua's are exact to.

An entry's b counts the payloads' bytes of it and all before it, so that what a partition keeps is a difference.

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
local free, groups = tonumber(id), redis.call('HVALS', KEYS[4])
if ARGV[6] ~= '1' then
    for _, offset in ipairs(groups) do free = math.min(free, tonumber(offset)) end
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
    if #groups == 0 and ARGV[6] ~= '1' then return 2 end
    if trim(1000, function(_, freed) return freed < size end) == 0 then return 2 end
    add(redis.call)
end
redis.call('HSET', KEYS[2], 'last', id, 'digest', ARGV[2], 'bytes', bytes_text, 'gone', string.format('%.0f', gone))
if not last then redis.call('HSET', KEYS[2], 'first', id) end
redis.call('XADD', KEYS[3], 'MAXLEN', '1', '0-' .. id, 'b', '1')
return last and 0 or 1
"""
)

_READ = (
    _NOW
    + b"""
if ARGV[1] ~= '' then
    if redis.call('HGET', KEYS[3], 'token') ~= ARGV[1] then return {'lost'} end
    redis.call('HDEL', KEYS[3], 'until')
    redis.call('HSET', KEYS[3], 'until', string.format('%.0f', now_ms + ARGV[2]))
end
local log_end = redis.call('HMGET', KEYS[2], 'last', 'digest')
local last, position, digest = tonumber(log_end[1] or 0), tonumber(ARGV[3]), ARGV[4]
if last < position or (last == position and digest ~= '' and digest ~= log_end[2]) then return {'back'} end
local found = {}
if last > position then
    found = redis.call('XRANGE', KEYS[1], '0-' .. ARGV[3], '+', 'COUNT', ARGV[5] + 1)
end
local answer, bytes, before = {'on'}, 0, digest ~= '' and position or nil
for _, entry in ipairs(found) do
    local number = tonumber(string.match(entry[1], '^0%-(%d+)$'))
    if not number then break end
    local fields = {}
    for place = 1, #entry[2], 2 do fields[entry[2][place]] = entry[2][place + 1] end
    if number == position then
        if digest ~= '' and fields.d ~= digest then return {'back'} end
    else
        local payload = fields.p or ''
        if bytes > 0 and bytes + #payload > tonumber(ARGV[6]) or #answer > tonumber(ARGV[5]) then break end
        if before and number > before + 1 then answer[1] = 'gap' end
        before = number
        bytes = bytes + #payload
        local size = fields.p and #payload or -1
        if size > tonumber(ARGV[7]) then payload = '' end
        answer[#answer + 1] = {string.format('%.0f', number), fields.d or '', payload, size}
    end
end
if last > position and #answer == 1 then return {'empty', string.format('%.0f', last), log_end[2]} end
return answer
"""
)

_CLAIM = (
    _NOW
    + b"""
local lease = redis.call('HMGET', KEYS[1], 'token', 'until')
if lease[1] and lease[1] ~= ARGV[2] and tonumber(lease[2]) > now_ms then return {0, '', ''} end
redis.call('HDEL', KEYS[1], 'token', 'until')
redis.call('HSET', KEYS[1], 'token', ARGV[2], 'until', string.format('%.0f', now_ms + ARGV[3]))
local begin, log_end = redis.call('HMGET', KEYS[1], 'offset', 'digest'), redis.call('HMGET', KEYS[3], 'last', 'digest')
if begin[1] and (begin[1] == ARGV[5] or tonumber(begin[1]) > tonumber(log_end[1] or 0)) then
    redis.call('HDEL', KEYS[1], 'offset', 'digest')
    redis.call('HSET', KEYS[2], ARGV[1], '0')
    return {2, '', ''}
end
if not begin[1] and ARGV[4] == '1' then
    begin = log_end
    if begin[1] then redis.call('HSET', KEYS[1], 'offset', begin[1], 'digest', begin[2]) end
end
redis.call('HSETNX', KEYS[2], ARGV[1], begin[1] or '0')
return {1, begin[1] or '', begin[2] or ''}
"""
)

_COMMIT = b"""
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[2] then return 0 end
local last, old = redis.call('HGET', KEYS[3], 'last'), redis.call('HGET', KEYS[1], 'offset')
if not last or tonumber(ARGV[3]) > tonumber(last) then return 2 end
if not old or tonumber(old) < tonumber(ARGV[3]) then
    redis.call('HDEL', KEYS[1], 'offset')
    redis.call('HSET', KEYS[1], 'offset', ARGV[3], 'digest', ARGV[4])
    redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
end
return 1
"""

_RENEW = (
    _NOW
    + b"""
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
redis.call('HDEL', KEYS[1], 'until')
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now_ms + ARGV[2]))
return 1
"""
)

_RELEASE = b"""
if redis.call('HGET', KEYS[1], 'token') == ARGV[1] then redis.call('HDEL', KEYS[1], 'token', 'until') end
return 1
"""

_IDENTITY = b"""
local known = redis.call('GET', KEYS[1])
if known then return known end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
"""

_JOIN = (
    _NOW
    + b"""
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now_ms))
redis.call('ZADD', KEYS[1], string.format('%.0f', now_ms + ARGV[2]), ARGV[1])
return redis.call('ZRANGE', KEYS[1], 0, -1)
"""
)
_MEMBERS = (
    _NOW
    + b"""
return redis.call('ZCOUNT', KEYS[1], string.format('(%.0f', now_ms), '+inf')
"""
)


def digest_of(payload: bytes) -> bytes:
    """By which an entry is known again."""
    return hashlib.blake2b(payload, digest_size=8).hexdigest().encode()


class PartitionCommands:
    """The commands on one partition, ready to be sent; what they answer stands with each."""

    def __init__(self, at: TopicPartition) -> None:
        tag = f"{at.model}/{at.table}/{at.partition}".encode()
        prefix = _PREFIX + b"{" + tag + b"}:"
        self._log, self._end, self.bell = prefix + b"log", prefix + b"end", prefix + b"bell"
        self._committed, self._group = prefix + b"committed", prefix + b"group:"

    def append(
        self, payload: bytes, most_entries: int, most_bytes: int, most_age_ms: int, trim_uncommitted: bool
    ) -> Command:
        """1 if it is the first of the log, else 0; 2 if Redis has no memory left for it, and there is nothing that all
        groups have committed to make room.
        """
        limits = b"%d" % most_entries, b"%d" % most_bytes, b"%d" % most_age_ms, b"1" if trim_uncommitted else b"0"
        keys = self._log, self._end, self.bell, self._committed
        return self._eval(_APPEND, keys, payload, digest_of(payload), *limits)

    def read(
        self, group: bytes, token: bytes, lease_ms: int, position: int, digest: bytes, count: int, most_bytes: int,
        most_entry_bytes: int,
    ) -> Command:  # fmt: skip
        """`[b"on" | b"gap", [number, digest, payload, size]...]`, or `[b"lost"]`: the lease is not ours; `[b"back"]`:
        the log does not have what was read last; `[b"empty", last, digest]`: what followed is gone. Without token there
        is no lease. Size -1 is an entry without payload; one of more than `most_entry_bytes` comes without.
        """
        limits = b"%d" % count, b"%d" % most_bytes, b"%d" % most_entry_bytes
        keys = self._log, self._end, self._group + group
        return self._eval(_READ, keys, token, b"%d" % lease_ms, b"%d" % position, digest, *limits)

    def claim(self, group: bytes, token: bytes, lease_ms: int, newest: bool, gone: int | None = None) -> Command:
        """`[1, offset, digest]` committed by the group, both empty if none is; `[0, ...]` while it is another's.

        `[2, "", ""]` if it is ours now, but the log does not have what was committed: it went back, and the group has
        committed nothing now. `gone` is an offset at which the log is known to have something else.
        """
        keys = self._group + group, self._committed, self._end
        gone_text = b"" if gone is None else b"%d" % gone
        return self._eval(_CLAIM, keys, group, token, b"%d" % lease_ms, b"1" if newest else b"0", gone_text)

    def commit(self, group: bytes, token: bytes, offset: int, digest: bytes) -> Command:
        """0 if the lease is not ours, 2 if the log does not have that offset, else 1: that, or more, is committed."""
        keys = self._group + group, self._committed, self._end
        return self._eval(_COMMIT, keys, group, token, b"%d" % offset, digest)

    def renew(self, group: bytes, token: bytes, lease_ms: int) -> Command:
        """0 if the lease is not ours."""
        return self._eval(_RENEW, (self._group + group,), token, b"%d" % lease_ms)

    def release(self, group: bytes, token: bytes) -> Command:
        """1."""
        return self._eval(_RELEASE, (self._group + group,), token)

    def forget(self, group: bytes) -> list[Command]:
        """Above 0 if there was something of the group."""
        key = self._group + group
        return [Command(key, (b"HDEL", self._committed, group)), Command(key, (b"DEL", key))]

    def end(self) -> Command:
        """`[last number, digest]`."""
        return Command(self._end, (b"HMGET", self._end, b"last", b"digest"))

    def first(self) -> Command:
        """Number of the first entry that there ever was; None where there was none, or it came before this was kept."""
        return Command(self._end, (b"HGET", self._end, b"first"))

    def length(self) -> Command:
        """How many entries there are."""
        return Command(self._log, (b"XLEN", self._log))

    def groups(self) -> Command:
        """The groups that have begun to read the partition."""
        return Command(self._log, (b"HKEYS", self._committed))

    def offset(self, group: bytes) -> Command:
        """What the group has committed, 0 if it has only begun to read, or None: what trimming goes by."""
        return Command(self._log, (b"HGET", self._committed, group))

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

    def join(self, group: bytes, member: bytes, lease_ms: int) -> Command:
        """The members alive, this one among them."""
        key = self._prefix + b"members:" + group
        return self._command(b"EVAL", _JOIN, b"1", key, member, b"%d" % lease_ms)

    def members(self, group: bytes) -> Command:
        """How many are alive."""
        return self._command(b"EVAL", _MEMBERS, b"1", self._prefix + b"members:" + group)

    def forget(self, group: bytes) -> Command:
        """Anything: it removes what is left of members that did not leave."""
        return self._command(b"DEL", self._prefix + b"members:" + group)

    def leave(self, group: bytes, member: bytes) -> Command:
        """Anything."""
        return self._command(b"ZREM", self._prefix + b"members:" + group, member)

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
