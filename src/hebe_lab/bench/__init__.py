"""Benchmarks that users run too: `hebe bench NAME`."""

BENCHMARKS: dict[str, str] = {
    "embeddings": "hebe_lab.bench.embeddings.embeddings",
    "execution": "hebe_lab.bench.serving.execution",
    "generator": "hebe_lab.bench.echo.generator",
    "overload": "hebe_lab.bench.serving.overload",
    "planning": "hebe_lab.bench.planning.planning",
    "quality": "hebe_lab.bench.embeddings.quality",
    "reconfigure": "hebe_lab.bench.serving.reconfigure",
    "reload": "hebe_lab.bench.serving.reload",
    "search": "hebe_lab.bench.search.search",
    "serve": "hebe_lab.bench.serving.serve",
    "sparse": "hebe_lab.bench.embeddings.sparse",
    "startup": "hebe_lab.bench.serving.startup",
}
"""Name -> module of every benchmark (`runner.py` says what one is), imported only when it runs."""
