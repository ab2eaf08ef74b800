"""What `hebe serve` imports, with what numba imports when its first kernel is called; done by being imported."""

import confluent_kafka
import redis
import rocksdict
from numba.core.registry import cpu_target

import hebe.cli.main
import hebe.cli.serve
import hebe.serving.server

__all__ = ["confluent_kafka", "hebe", "redis", "rocksdict"]

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
