"""Compiled hash tables: the cache's slabs, the hash map, XXH64."""
