from hebe.embeddings.memory.model_rows import ModelRows
from hebe.spec import EmbeddingTableSpec

TABLES = (EmbeddingTableSpec("users", 10, 4), EmbeddingTableSpec("items", 5, 1))


def rows_of(identity: str, version: int = 1) -> ModelRows:
    return ModelRows("ads", version, TABLES, {}, identity)


def test_other_files_or_another_version_are_another_content() -> None:
    contents = {rows_of(identity, version).content for identity in ("a" * 40, "b" * 40) for version in (1, 2)}
    assert len(contents) == 4
    assert rows_of("a" * 40).content == rows_of("a" * 40).content


def test_a_content_without_identity_is_named_by_model_and_version() -> None:
    assert rows_of("").content == "ads.1"
    assert rows_of("").dims == {"users": 4, "items": 1}
