import logging

from hebe.embeddings.store import StoreUnavailable
from hebe.embeddings.updates.contract import Delivery, TopicPartition
from hebe.embeddings.updates.ingestion.error_reports import Incidents
from hebe.embeddings.updates.ingestion.sequence_check import Gap
from hebe.embeddings.updates.ingestion.statistics import IngestionCounter

AT, OTHER = TopicPartition("m", "t", 0), TopicPartition("m", "t", 1)


def texts(caplog):
    return [record.getMessage() for record in caplog.records]


def test_a_lost_beginning_is_told_once_for_each_partition(caplog):
    counter = IngestionCounter([])
    incidents = Incidents("m", counter, None)
    for gap in (Gap(AT, None, 0, 9), Gap(OTHER, None, 0, 3), Gap(AT, None, 0, 9), Gap(AT, None, 0, 20)):
        incidents.lost_beginning(gap)
    assert counter.read().gaps == len(caplog.records) == 3
    assert texts(caplog)[0] == (
        "online updates: offsets 0 to 9 of partition 0 of model m, table t were removed from the log before they were "
        "read; those sent after the model's rows were read out of training are lost here: load a version with newer "
        "rows, or let the log keep more"
    )


def test_refused_keys_are_told_at_once_and_then_by_their_number(caplog):
    counter = IngestionCounter([])
    incidents = Incidents("m", counter, None)
    for total in (0, 2, 2, 19, 20, 21, 199, 900):
        incidents.refused("resident", "t", total, "load another")
    incidents.refused("resident", "other", 1, "load another")
    assert [text.split()[2] for text in texts(caplog)] == ["2", "20", "900", "1"]
    assert "table t of model m (resident), and are left out: load another" in texts(caplog)[0]
    assert counter.read().refused == 901


def test_rows_that_a_store_cannot_hold_are_told_at_once_and_then_by_their_number(caplog):
    counter = IngestionCounter([])
    incidents = Incidents("m", counter, None)
    incidents.refused("resident", "t", 5, "load another")
    for total in (0, 2, 2, 19, 20, 21, 199, 900):
        incidents.unheld("resident", "t", total)
    refused, *told = texts(caplog)
    assert [text.split()[2] for text in (refused, *told)] == ["5", "2", "20", "900"]
    assert "numbers that table t of model m (resident) cannot hold in its row format, and were clipped" in told[0]
    assert (counter.read().unheld, counter.read().refused) == (900, 5)


def test_messages_passed_over_are_told_once_for_each_table_with_both_times(caplog):
    caplog.set_level(logging.INFO, "hebe.updates")
    counter = IngestionCounter([])
    incidents = Incidents("m", counter, None)
    for at in (AT, OTHER, TopicPartition("m", "other", 0), AT):
        incidents.passed_over(at, 1_700_000_000.25, 1_700_003_600.0)
    assert counter.read().passed_over == 4
    assert texts(caplog) == [
        f"online updates: table {table} of model m has messages older than the model's rows, which have them, and they "
        "are passed over; the first was sent at 2023-11-14T22:13:20.250+00:00, the rows are as of "
        "2023-11-14T23:13:20.000+00:00 (rows_as_of)"
        for table in ("t", "other")
    ]


def test_a_message_of_a_clock_that_is_quite_wrong_is_passed_over_all_the_same(caplog):
    caplog.set_level(logging.INFO, "hebe.updates")
    Incidents("m", IngestionCounter([]), None).passed_over(AT, -1e18, 1_700_000_000.0)
    assert "sent at -1e+18 s, the rows" in caplog.text


def test_poison_is_told_with_where_it_is(tmp_path, caplog):
    counter = IngestionCounter([])
    Incidents("m", counter, tmp_path).poison(Delivery(AT, 7, None, "", b"xyz"), "truncated")
    Incidents("m", counter, None).poison(Delivery(AT, 8, None, "", b"xyz"), "truncated")
    kept, told = counter.read().last_poison
    [where] = tmp_path.glob("m.t.0.7.*.message")
    assert where.read_bytes() == b"xyz"
    assert kept == f"message 7 of partition 0 of model m, table t: truncated ({where})"
    assert told.endswith("no quarantine directory; its 3 bytes begin with 78797a)")
    assert f"cannot be applied: truncated ({where})" in caplog.text
    assert counter.read().poison == 2


def test_what_happened_to_the_log_counts_as_what_cannot_be_applied_and_is_not_put_aside(tmp_path, caplog):
    counter, missed = IngestionCounter([]), []
    incidents = Incidents("m", counter, tmp_path, lambda: missed.append(0))
    incidents.went_back(AT, 9, "it ends with offset 3")
    incidents.other_log(AT, 9)
    incidents.of_source(Delivery(AT, 0, None, "the log was emptied"))
    statistics = counter.read()
    assert (statistics.poison, len(statistics.last_poison), len(missed)) == (3, 3, 3)
    assert len(texts(caplog)) == 3
    incidents.of_source(Delivery(AT, 1, None, "the log was emptied"))
    assert len(texts(caplog)) == 3, "as it mostly comes of all partitions"
    assert all(text.startswith("partition 0 of model m, table t: the log") for text in statistics.last_poison)
    assert statistics.last_error == "the log was emptied"
    assert not list(tmp_path.iterdir())


def test_a_fault_is_told_when_it_is_news_and_when_it_is_over(caplog):
    caplog.set_level(logging.INFO, "hebe.updates")
    counter = IngestionCounter([])
    incidents = Incidents("m", counter, None)
    for fault in (StoreUnavailable("away"), StoreUnavailable("away"), ValueError("odd")):
        incidents.failed("asking", fault)
    incidents.succeeded()
    incidents.succeeded()
    assert texts(caplog) == [
        "online updates: asking failed, trying again: away",
        "online updates: asking failed, trying again: ValueError: odd",
        "online updates go on",
    ]
    assert [record.exc_info is None for record in caplog.records] == [True, False, True]
    assert counter.read().failures == 3
