"""What `GET /v2/status` answers, for the tests of those who show it."""

SERVER = {"name": "hebe", "version": "1.2.3", "live": True, "ready": True, "uptime_s": 7500.0}
LONE = {
    "name": "lone",
    "version": 1,
    "state": "READY",
    "ready": True,
    "reason": "",
    "workers": 2,
    "queue_depth": 3,
    "batch_size": 256,
    "max_items": 8192,
    "sla": {"latency_ms": 50.0, "percentile": 95.0, "attainment": None},
    "queries": {"answered": 0, "items": 0, "refused": {}},
    "latency_ms": {"p50": None, "p95": None, "p99": None},
    "keys": {"total": 0, "defaulted": 0, "stale": 0, "unknown": 0},
    "table_memory_bytes": 4 << 20,
    "row_format": "int8",
    "tiers": [],
    "background": None,
    "refresh": None,
    "updates": {},
}
RANKER = LONE | {
    "name": "ranker",
    "version": 7,
    "sla": {"latency_ms": 50.0, "percentile": 95.0, "attainment": 0.985},
    "queries": {"answered": 12345, "items": 10**6, "refused": {"deadline": 5, "queue_full": 2}},
    "latency_ms": {"p50": 1.25, "p95": 20.0, "p99": 45.0},
    "keys": {"total": 1000, "defaulted": 25, "stale": 0, "unknown": 1},
    "tiers": [
        {
            "name": "cache", "kind": "host_cache", "available": True, "circuit": None, "unavailable_s": None,
            "failures": 0, "fault": None, "fault_s": None,
            "rows": 800, "capacity_rows": 1024, "bytes": 1 << 20, "hits": 90, "misses": 10, "hit_rate": 0.9,
        },
        {
            "name": "volatile_db", "kind": "redis", "available": False, "circuit": "open", "unavailable_s": 95.0,
            "failures": 7, "fault": "Redis 10.0.0.7:6379: Connection refused", "fault_s": 2.5,
            "rows": None, "bytes": None, "hits": 6,
        },
    ],
    "background": {"waiting": 4, "dropped": 2},
    "refresh": {
        "iterations": 5, "last": {"rows": 800, "replaced": 790, "dropped": 6, "unreachable": 4, "seconds": 0.25}
    },
    "updates": {
        "tiers": {
            "messages": 4, "rows": 4321, "deletes": 3, "rows_per_s": 12.5, "lag_messages": 11,
            "visible_s": {"persistent_db": {"p50": 0.02, "p99": 1.5}, "cache": {"p50": 0.03, "p99": 1.25}},
            "gaps": 1, "missing": 3, "last_gaps": [], "poison": 0, "last_poison": [], "refused": 0, "duplicates": 2,
            "failures": 0, "failing": False, "fault": "its checksum is wrong",
        }
    },
}  # fmt: skip
DEGRADED = {
    "model": "ranker",
    "what": "volatile_db",
    "since_s": 95.0,
    "reason": "Redis 10.0.0.7:6379: Connection refused",
}


def document(**changed):
    return {"server": SERVER, "degraded": [], "models": [LONE, RANKER], "models_left_out": 0} | changed
