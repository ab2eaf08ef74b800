import json
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.embeddings.updates.contract import Topic, TopicPartition
from hebe.embeddings.updates.directory.group import GroupMember, assignment, begun_topics, committed_offset

USERS, ITEMS = Topic("m", "users"), Topic("m", "items")
TOPICS = [Topic("m", f"t{number}") for number in range(4)]
AT = TopicPartition("m", "users", 1)


@given(
    st.dictionaries(
        st.text("abcdef", min_size=1, max_size=3), st.sets(st.sampled_from(TOPICS)), min_size=1, max_size=6
    ),
    st.integers(1, 9),
)
def test_every_partition_has_one_member_that_is_subscribed(members, partitions):
    shares = {name: assignment(members, TOPICS, partitions, name) for name in members}
    given_out = [at for share in shares.values() for at in share]
    assert len(given_out) == len(set(given_out))
    wanted = {topic for topics in members.values() for topic in topics}
    assert set(given_out) == {TopicPartition(t.model, t.table, part) for t in wanted for part in range(partitions)}
    assert all(at.topic in members[name] for name, share in shares.items() for at in share)


@given(st.integers(1, 6), st.integers(1, 9))
def test_members_of_one_kind_have_even_shares(members, partitions):
    names = {str(number): TOPICS for number in range(members)}
    counts = [len(assignment(names, TOPICS, partitions, name)) for name in names]
    assert max(counts) - min(counts) <= 1


def test_members_see_each_other_and_the_dead_are_forgotten(tmp_path):
    one = GroupMember(tmp_path, [USERS], 2)
    assert len(one.targets()) == 2
    other = GroupMember(tmp_path, [USERS], 2)
    assert len(one.targets()) == len(other.targets()) == 1
    assert one.targets() | other.targets() == {TopicPartition("m", "users", part) for part in range(2)}
    (tmp_path / "members" / "killed").write_text(json.dumps([["m", "users"]]))  # nobody holds its lock
    assert len(one.targets()) == 1
    assert not (tmp_path / "members" / "killed").exists()
    other.close()
    assert len(one.targets()) == 2
    for path in (tmp_path / "members").iterdir():
        path.unlink()  # whoever cleared it
    third = GroupMember(tmp_path, [USERS], 2)
    assert len(one.targets()) == 1
    assert len(third.targets()) == 1
    third.close()
    one.close()
    one.close()


def test_a_partition_is_held_by_one(tmp_path):
    one, other = GroupMember(tmp_path, [USERS], 2), GroupMember(tmp_path, [USERS], 2)
    assert one.take(AT)
    assert not other.take(AT)
    one.give_back(AT)
    assert other.take(AT)
    other.close()
    assert one.take(AT)
    one.close()


def test_a_member_whose_directory_was_cleared_has_its_partition_again(tmp_path):
    one, other = GroupMember(tmp_path / "g", [USERS], 2), GroupMember(tmp_path / "g", [USERS], 2)
    assert one.take(AT)
    assert one.keeps(AT, None)
    assert committed_offset(tmp_path / "g", AT) is None
    shutil.rmtree(tmp_path / "g")
    assert len(one.targets()) == 2
    assert len(other.targets()) == 1
    assert one.keeps(AT, 7)
    assert committed_offset(tmp_path / "g", AT) == 7
    assert not other.take(AT)
    shutil.rmtree(tmp_path / "g")
    assert other.take(AT), "nobody holds the lock that is there now"
    assert not one.keeps(AT, 7)
    assert not one.keeps(AT, 7)
    one.close()
    other.close()


def test_offsets_are_kept_and_damage_means_from_the_beginning(tmp_path):
    assert committed_offset(tmp_path, AT) is None
    assert begun_topics(tmp_path) == []
    member = GroupMember(tmp_path, [USERS, ITEMS], 2)
    assert member.take(AT)
    assert begun_topics(tmp_path) == [USERS], "before anything of it is committed"
    for offset in (3, 7):
        member.commit(AT, offset)
        assert committed_offset(tmp_path, AT) == offset
    assert begun_topics(tmp_path) == [USERS]
    [file] = tmp_path.glob("offsets/m/users/*.json")
    for content in ("", "{", '{"committed": "x"}', '{"committed": -7}', "[]", '{"other": 1}'):
        file.write_text(content)
        assert committed_offset(tmp_path, AT) is None
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".")] == []
    member.close()


def test_who_may_read_one_file_of_a_group_may_read_all(tmp_path):
    """Another user's `hebe update lag`, or server that takes over."""
    before = os.umask(0o027)
    try:
        member = GroupMember(tmp_path, [USERS], 2)
        assert member.take(AT)
        member.commit(AT, 3)
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {"", ".lock", ".json"}
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {oct(0o640)}
    member.close()


@pytest.mark.parametrize("content", ["", "{", "[[1, 2]]", '[["m"]]', '[["m", "a/b"]]', '{"m": 1}'])
def test_a_members_file_that_says_nothing_shares_nothing(tmp_path, content):
    member, other = GroupMember(tmp_path, [USERS], 2), GroupMember(tmp_path, [USERS], 2)
    [file] = [path for path in (tmp_path / "members").iterdir() if path.name == other._name]
    file.write_text(content)  # its lock is held still
    assert len(member.targets()) == 2
    member.close()
    other.close()
