"""Benchmarks that users run too: `hebe bench NAME`."""

BENCHMARKS: dict[str, str] = {
    "embeddings": "hebe.bench.embeddings",
    "execution": "hebe.bench.execution",
    "generator": "hebe.bench.generator",
    "overload": "hebe.bench.overload",
    "planning": "hebe.bench.planning",
    "reconfigure": "hebe.bench.reconfigure",
    "reload": "hebe.bench.reload",
    "search": "hebe.bench.search",
    "serve": "hebe.bench.serve",
    "sparse": "hebe.bench.sparse",
    "startup": "hebe.bench.startup",
}
"""Name -> module of every benchmark (`runner.py` says what one is), imported only when it runs."""
