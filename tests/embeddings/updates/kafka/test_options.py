import re

import pytest

from hebe.embeddings.updates.kafka.options import KafkaOptions, read_security


def test_settings_of_kafka_are_read_from_a_file_of_its_own_form(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("# of ours\n\nsecurity.protocol = sasl_ssl\nsasl.password=a=b\n")
    assert read_security(file) == {"security.protocol": "sasl_ssl", "sasl.password": "a=b"}


@pytest.mark.parametrize("text", ["sasl.password secret", "plugin.library.paths=secret", "x" * (1 << 17), "\udcff"])
def test_settings_that_are_none_are_refused_without_their_values(tmp_path, text):
    file = tmp_path / "client.properties"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=re.escape(str(file))) as raised:
        read_security(file)
    assert "secret" not in str(raised.value)
    with pytest.raises(ValueError, match="No such file"):
        read_security(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("brokers", "nowhere"),
        ("brokers", "x:99999"),
        ("brokers", "me:secret@one:9092"),
        ("num_partitions", 0),
        ("request_timeout_s", float("nan")),
        ("most_message_bytes", 10),
        ("replication_factor", 0),
    ],
)
def test_options_out_of_range_are_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        KafkaOptions(**{name: value})  # type: ignore[arg-type]
