from dataclasses import replace

import numpy as np

from hebe.embeddings.updates.contract import TopicPartition, UpdateMessage, data_bytes

MESSAGE = UpdateMessage("trainer", 3, 1000.0, np.arange(5), np.zeros((5, 4), np.float32), span_s=2.5)


def test_a_message_is_known_by_who_sent_it_and_its_number():
    others = [replace(MESSAGE, producer="other"), replace(MESSAGE, sequence=4), replace(MESSAGE, sequence=30)]
    assert len({message.mark for message in (MESSAGE, *others)}) == 4
    assert replace(MESSAGE, sent_s=7.0, rows=None).mark == MESSAGE.mark


def test_the_newest_row_of_a_message_may_be_later_than_the_message():
    assert MESSAGE.newest_s == 1002.5


def test_keys_that_go_take_no_rows():
    assert data_bytes(MESSAGE.keys, MESSAGE.rows) == 8 * 5 + 4 * 5 * 4
    assert data_bytes(MESSAGE.keys, None) == 8 * 5


def test_partitions_of_a_topic_lie_together_in_order():
    parts = [TopicPartition(model, table, part) for part in (10, 9) for table in ("u", "i") for model in ("b", "a")]
    assert [part.topic for part in sorted(parts)][::2] == sorted({part.topic for part in parts})
    assert [part.partition for part in sorted(parts)] == [9, 10] * 4
