"""What `hebe serve` imports, with what numba imports when its first kernel is called; done by being imported."""

import gc

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

# Each child would look through all of it, in pages that it shares until then.
gc.collect()
gc.freeze()
