import errno
import json
import re
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings.updates.contract import Delivery, TopicPartition, UpdateMessage
from hebe.embeddings.updates.ingestion import error_reports as module
from hebe.embeddings.updates.ingestion.error_reports import Quarantine
from hebe.embeddings.updates.message import decode, encode

AT = TopicPartition("m", "t", 2)


def poison(offset, payload=b"broken"):
    return Delivery(AT, offset, None, "no message", payload)


def test_bytes_and_reason_are_kept(tmp_path):
    file = Path(Quarantine(tmp_path / "aside").put(poison(7), "truncated"))
    assert file.parent == tmp_path / "aside"
    assert re.fullmatch(r"m\.t\.2\.7\.[0-9a-f]{8}\.message", file.name)
    assert file.read_bytes() == b"broken"
    record = json.loads(file.with_name(f"{file.name}.json").read_text())
    assert record.pop("put_aside_s") > 0
    assert record == {"model": "m", "table": "t", "partition": 2, "offset": 7, "fault": "truncated"}


def test_a_whole_message_is_kept_as_its_bytes(tmp_path):
    message = UpdateMessage("p", 3, 1.0, np.arange(2), np.ones((2, 5), np.float32))
    kept = decode(Path(Quarantine(tmp_path).put(Delivery(AT, 7, message), "wrong dim")).read_bytes(), AT)
    assert (kept.sequence, kept.rows.shape) == (3, (2, 5))


def test_another_message_at_the_same_place_takes_no_ones_place(tmp_path):
    """A log that was made anew begins with offset 0 again."""
    kept = Quarantine(tmp_path)
    for payload in (b"broken", b"of another log", b"", b"broken"):
        kept.put(poison(0, payload), "no message")
    assert sorted(file.read_bytes() for file in tmp_path.glob("*.message")) == [b"", b"broken", b"of another log"]
    assert len(list(tmp_path.glob("*.json"))) == 3


@pytest.mark.parametrize(("name", "limit"), [("MOST_MESSAGES", 3), ("MOST_BYTES", 18)])
def test_it_does_not_grow_without_bound_and_knows_what_it_holds(tmp_path, monkeypatch, name, limit):
    monkeypatch.setattr(module, name, limit)
    for offset in range(2):
        Quarantine(tmp_path).put(poison(offset), "")  # each as after a restart
    full = Quarantine(tmp_path)
    full.put(poison(1), "")  # the same once more
    full.put(poison(2), "")
    assert full.put(poison(3), "").startswith(f"not kept: {tmp_path} holds 3 messages of 18 bytes already; its 6 bytes")
    assert sorted(path.name.split(".")[3] for path in tmp_path.glob("*.message")) == ["0", "1", "2"]


def test_what_cannot_be_kept_is_said_and_nothing_is_raised(tmp_path):
    (tmp_path / "file").write_text("")
    begin = f"its 6 bytes begin with {b'broken'.hex()}"
    assert Quarantine(tmp_path / "file").put(poison(1), "") == f"not kept: {tmp_path / 'file'}: File exists; {begin}"
    assert Quarantine(None).put(poison(1), "") == f"not kept: there is no quarantine directory; {begin}"
    told = Quarantine(None).put(poison(1, b""), "")
    assert told == "not kept: there is no quarantine directory; it has no bytes"


def test_a_reason_is_seen_whole_or_not_at_all(tmp_path, monkeypatch):
    """Somebody who looks in while it is written finds no half of it; a disk that fills meanwhile keeps neither file."""
    seen = []

    def half(path, text):
        path.write_bytes(text.encode()[:20])
        seen.extend(tmp_path.glob("*.json"))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    assert "No space left on device" in Quarantine(tmp_path).put(poison(1), "")
    assert seen == []
    assert list(tmp_path.iterdir()) == []


def test_a_message_that_comes_again_while_the_disk_is_full_stays_as_it_was_kept(tmp_path, monkeypatch):
    kept = Quarantine(tmp_path)
    kept.put(poison(1), "truncated")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert "No space left on device" in kept.put(poison(1), "truncated")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("damage", [None, 60, -3])
def test_where_nothing_is_kept_the_sender_is_told(damage):
    """Of a whole message that cannot be applied, and of one whose bytes are damaged behind its names."""
    message = UpdateMessage("trainer-7", 12, 1.0, np.arange(40), np.ones((40, 5), np.float32))
    payload = bytearray(encode(message, AT))
    if damage is not None:
        payload[damage] ^= 8
    told = Quarantine(None).put(
        Delivery(AT, 7, message) if damage is None else Delivery(AT, 7, None, "corrupt", bytes(payload)), "wrong"
    )
    assert told.endswith(f"begin with {payload[:48].hex()}, and name producer trainer-7, message 12")
