"""The persistent store in RocksDB."""
