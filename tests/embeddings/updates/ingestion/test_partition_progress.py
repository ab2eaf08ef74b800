import numpy as np
import pytest

from hebe.embeddings.updates.contract import Delivery, TopicPartition, UpdateMessage
from hebe.embeddings.updates.ingestion.partition_progress import PartitionProgress, Stage, seek_offset
from hebe.embeddings.updates.ingestion.sequence_check import MOST_HELD, Gap
from hebe.embeddings.updates.ingestion.store_batches import StoreBatch
from hebe.embeddings.updates.ingestion.updated_stores import StoredPosition

AT = TopicPartition("m", "users", 0)


def message_at(offset, producer="p"):
    """As one producer's log has it: its number is its offset."""
    return Delivery(AT, offset, UpdateMessage(producer, offset, 0.0, np.arange(1), None))


def batch_up_to(position):
    return StoreBatch(np.arange(1), None, 1, position, (0.0,))


def begun(position=None, name=None):
    progress = PartitionProgress(AT, position_name=name)
    progress.begin(position)
    return progress


def test_it_is_read_from_a_little_before_its_position():
    assert seek_offset(None) == seek_offset(StoredPosition(3)) == -1
    assert seek_offset(StoredPosition(500)) == 500 - MOST_HELD


def test_what_was_applied_before_is_only_learned():
    progress = begun(StoredPosition(2, "p/2"))
    for offset in range(2):
        assert progress.other_mark(message_at(offset)) is None
        assert progress.take(message_at(offset)) is None
    assert (progress.stage, progress.to_report) == (Stage.CHECKING, None), "the log may be another one"
    assert progress.known_applied is None
    assert progress.other_mark(message_at(2)) is None
    assert progress.take(message_at(2)) is None
    assert progress.take(message_at(3)) is None
    assert (progress.stage, progress.to_report, progress.known_applied) == (Stage.FOLLOWED, 2, 2)
    assert [delivery.offset for delivery in progress.order.release(0.0).deliveries] == [3]
    assert progress.order.duplicates == 0


@pytest.mark.parametrize("first", [message_at(2, "q"), message_at(7, "q")], ids=["there", "beyond it"])
def test_another_message_at_its_position_is_another_log(first):
    progress = begun(StoredPosition(2, "p/2"))
    progress.order.learn(message_at(1, "q"))
    assert progress.other_mark(first) == ("q/2" if first.offset == 2 else "q/1")
    progress.begin(None)
    assert progress.other_mark(first) is None
    assert (progress.handed, progress.applied, progress.position, progress.unjudged) == (-1, -1, None, True)
    assert progress.stage is Stage.FOLLOWED
    assert progress.order.mark_at(7) == "", "it has nothing to do with what came before"


def test_a_position_is_believed_where_nothing_is_left_to_know_it_by():
    unmarked, removed = begun(StoredPosition(2)), begun(StoredPosition(2, "p/2"))
    assert (unmarked.known_applied, unmarked.to_report) == (2, None), (
        "a source takes nothing that it has not handed over"
    )
    for progress in (unmarked, removed):
        assert progress.other_mark(message_at(9, "q")) is None
        assert progress.take(message_at(9, "q")) == Gap(AT, None, 3, 8)
        assert progress.take(message_at(20, "q")) is None, "only the first tells of what the log has removed"


def poison_at(offset, payload=b"x"):
    return Delivery(AT, offset, None, "broken", payload)


def test_stores_pass_what_is_not_applied_after_what_is():
    progress = begun(StoredPosition(2, "p/2"), name="L/m/users/0")
    progress.make_ready_to_pass()
    assert not progress.ready, "nothing has come"
    for delivery in (message_at(2), message_at(3), poison_at(4), poison_at(5)):
        assert progress.other_mark(delivery) is None
        progress.take(delivery)
    progress.order.release(0.0)
    progress.ready.append(batch_up_to(3))
    for _ in range(2):
        progress.make_ready_to_pass()
        passing = progress.ready[-1]
        assert [batch.position for batch in progress.ready] == [3, 5]
        assert (passing.keys.size, passing.rows, passing.count, passing.sent_s) == (0, None, 0, ())
        assert passing.mark == poison_at(0).mark != poison_at(0, b"y").mark
    progress.position = 5
    progress.ready.clear()
    progress.make_ready_to_pass()
    assert not progress.ready, "they have it"
    known = begun(StoredPosition(5, passing.mark), name="L/m/users/0")
    for delivery in (message_at(3), poison_at(4), poison_at(5)):
        assert known.other_mark(delivery) is None
        known.take(delivery)
    assert (known.stage, known.order.held) == (Stage.FOLLOWED, 0), "it is known again, and does not come again"
    other = begun(StoredPosition(5, passing.mark), name="L/m/users/0")
    assert other.other_mark(poison_at(5, b"y")) == poison_at(5, b"y").mark


def test_stores_do_not_pass_what_waits():
    waits, keeps_none = begun(None, name="L"), begun(None)
    for delivery in (message_at(0), message_at(2), poison_at(3)):
        for progress in (waits, keeps_none):
            progress.take(delivery)
            progress.order.release(0.0)
    for progress in (waits, keeps_none):
        progress.make_ready_to_pass()
    assert [batch.position for batch in waits.ready] == [1], "message 1 may still come, and 2 after it"
    assert not keeps_none.ready


def test_stores_are_given_positions_that_advance_alone():
    progress = begun(StoredPosition(4), name="L/m/users/0")
    assert progress.new_position(batch_up_to(5)) == ("L/m/users/0", 5)
    for batch in (batch_up_to(4), batch_up_to(None)):
        assert progress.new_position(batch) is None
    assert begun(None, name="L").new_position(batch_up_to(0)) == ("L", 0)
    assert begun(StoredPosition(4)).new_position(batch_up_to(5)) is None, "none of them keeps any"


def test_what_is_applied_is_reported_once_and_not_beyond_what_was_handed_over():
    progress = PartitionProgress(AT)
    assert (progress.stage, progress.known_applied, progress.to_report) == (Stage.NEW, None, None)
    progress.begin_after(6)
    assert (progress.known_applied, progress.to_report, progress.unjudged) == (6, None, False)
    progress.take(message_at(8))
    progress.applied = 8
    assert progress.to_report == 8
    progress.reported = 8
    assert progress.to_report is None
    progress.applied = 9
    assert progress.to_report is None


def test_a_partition_that_begins_again_drops_what_was_not_applied():
    progress = begun(StoredPosition(7, "p/7"), name="L/m/users/0")
    progress.ready.append(batch_up_to(8))
    progress.delivered.append(message_at(9))
    progress.begin(None)
    assert (len(progress.ready), len(progress.delivered), progress.stored_up_to) == (0, 0, -1)
    assert (progress.handed, progress.applied, progress.reported, progress.order.held) == (-1, -1, -1, 0)
