"""A consumer group of a log directory: who its members are, which partitions each has, and how far they are.

    members/ID            what the member is subscribed to; locked by it for as long as it lives
    offsets/MODEL/TABLE/PARTITION.lock    held by the member that has the partition
    offsets/MODEL/TABLE/PARTITION.json    the committed offset, replaced as a whole

Locks are the system's: they end with the process that holds them, however it ends. Every member computes the same
assignment from the members alive, gives back what is not its own any more once that is committed, and takes what
nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.contract import Topic, TopicPartition
from hebe.embeddings.updates.directory.segments import file_faults
from hebe.spec import SpecError, check_name

_MEMBERS, _OFFSETS = "members", "offsets"


def assignment(
    members: Mapping[str, Collection[Topic]], topics: Sequence[Topic], partitions: int, member: str
) -> set[TopicPartition]:
    """The partitions of `topics` that `member` should have: each to one of those subscribed to its topic, in turn."""
    own = set()
    turn = 0
    for topic in sorted(topics):
        subscribed = sorted(name for name, wanted in members.items() if topic in wanted)
        for partition in range(partitions):
            if subscribed and subscribed[turn % len(subscribed)] == member:
                own.add(TopicPartition(topic.model, topic.table, partition))
            turn += 1
    return own


def committed_offset(group: Path, at: TopicPartition) -> int | None:
    """The offset that the group has committed; None if none, or if the file is damaged: then all comes once more."""
    with (
        file_faults(group, "cannot read offsets"),
        contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError),
    ):
        value = json.loads(_offset_path(group, at).read_bytes()[:1000])["committed"]
        if isinstance(value, int) and value >= -1:
            return value
    return None


def begun_topics(group: Path) -> list[Topic]:
    """The topics that a member of the group ever had a partition of, in order: also those without messages until now,
    and those of which nothing is committed."""
    found = set()
    with file_faults(group, "cannot read offsets"), contextlib.suppress(FileNotFoundError):
        for file in (group / _OFFSETS).glob("*/*/*"):
            if file.suffix in (".json", ".lock"):
                found.add(Topic(file.parent.parent.name, file.parent.name))
    return sorted(found)


def forget_group(group: Path) -> bool:
    """Remove the group; False if there is none. Raises `StoreError` while it has a member."""
    with file_faults(group, "cannot be forgotten"):
        if not group.is_dir():
            return False
        if (group / _MEMBERS).is_dir() and _alive(group / _MEMBERS):
            raise StoreError(f"update log {group}: a server is still in this group: stop it first")
        shutil.rmtree(group)
    return True


class GroupMember:
    """One member of the group in directory `group`, subscribed to `topics` of `partitions` partitions each.

    `held` are the partitions that are this member's. Not for several threads.
    """

    def __init__(self, group: Path, topics: Sequence[Topic], partitions: int) -> None:
        self._group, self._topics, self._partitions = group, tuple(topics), partitions
        self.held: dict[TopicPartition, int] = {}
        """By partition, the file that holds its lock."""
        self._name = secrets.token_hex(8)
        with file_faults(group, "cannot join the group"):
            self._file = self._register()

    def targets(self) -> set[TopicPartition]:
        """The partitions that should be this member's, by who is alive now."""
        with file_faults(self._group, "cannot see the group's members"):
            return assignment(self._alive(), self._topics, self._partitions, self._name)

    def take(self, at: TopicPartition) -> bool:
        """Have the partition, unless another member still has it."""
        path = _offset_path(self._group, at).with_suffix(".lock")
        with file_faults(self._group, "cannot take a partition"):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            except BaseException:
                os.close(lock)
                raise
        self.held[at] = lock
        return True

    def keeps(self, at: TopicPartition, committed: int | None) -> bool:
        """Whether a partition that was taken is still this member's.

        Whoever cleared the directory took the lock's file with it: then the partition is had again, with what was
        `committed`, unless another member was first.
        """
        path = _offset_path(self._group, at).with_suffix(".lock")
        if at in self.held:
            with file_faults(self._group, "cannot keep a partition"), contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self.held[at]), os.stat(path)):
                    return True
            self.give_back(at)
        if not self.take(at):
            return False
        if committed is not None:
            self.commit(at, committed)
        return True

    def give_back(self, at: TopicPartition) -> None:
        """Others may have the partition."""
        os.close(self.held.pop(at))

    def commit(self, at: TopicPartition, offset: int) -> None:
        """Note how far the group is, where it outlives this process.

        A crash of the machine may take it back, or leave the file empty: then updates come once more. To wait for the
        disk, for each partition each second, would cost much and say too much: stores may lose more in that crash.
        """
        path = _offset_path(self._group, at)
        with file_faults(self._group, "cannot commit offsets"):
            temporary = path.with_name(f".{secrets.token_hex(8)}")
            try:
                with open(temporary, "x") as written:  # for whom the umask says, as the files beside it
                    json.dump({"committed": offset}, written)
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    def close(self) -> None:
        """Leave the group."""
        for at in list(self.held):
            self.give_back(at)
        if self._file >= 0:
            with contextlib.suppress(OSError):
                self._path().unlink()
            os.close(self._file)
            self._file = -1

    def _path(self) -> Path:
        return self._group / _MEMBERS / self._name

    def _register(self) -> int:
        content = json.dumps([[topic.model, topic.table] for topic in self._topics]).encode()
        while True:
            self._path().parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                os.pwrite(file, content, 0)
                if os.path.exists(self._path()) and os.path.samestat(os.fstat(file), os.stat(self._path())):
                    return file
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(file)
                raise
            os.close(file)  # another member took it for a dead one's in between

    def _alive(self) -> dict[str, list[Topic]]:
        """All members, and what they are subscribed to."""
        if not self._path().exists():  # whoever cleared the directory: be seen again
            file = self._register()
            os.close(self._file)
            self._file = file
        return {self._name: list(self._topics), **_alive(self._group / _MEMBERS, besides=self._name)}


def _alive(members: Path, besides: str = "") -> dict[str, list[Topic]]:
    """Those who hold their file's lock, and what they are subscribed to; files of the dead go."""
    alive = {}
    for path in members.iterdir():
        if path.name == besides or path.name.startswith("."):
            continue
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            alive[path.name] = _subscriptions(os.pread(file, 1 << 22, 0))
        finally:
            os.close(file)
    return alive


def _subscriptions(content: bytes) -> list[Topic]:
    """What a member's file says; nothing while it is being written."""
    try:
        topics = [Topic(model, table) for model, table in json.loads(content)]
        for topic in topics:
            check_name("model", topic.model)
            check_name("table", topic.table)
    except (ValueError, TypeError, SpecError):
        return []
    return topics


def _offset_path(group: Path, at: TopicPartition) -> Path:
    return group / _OFFSETS / at.model / at.table / f"{at.partition}.json"
