"""HPS configurations as HugeCTR's documentation and examples have them, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def documented(directory: str = "/wdl_infer/model/wdl/1") -> dict[str, Any]:
    """A configuration with nearly every parameter: the documentation's samples put together."""
    return {
        "supportlonglong": True,
        "fuse_embedding_table": False,
        "models": [
            {
                "model": "wdl",
                "sparse_files": [f"{directory}/wdl0_sparse_20000.model", f"{directory}/wdl1_sparse_20000.model"],
                "dense_file": f"{directory}/wdl_dense_20000.model",
                "network_file": f"{directory}/wdl.json",
                "num_of_worker_buffer_in_pool": 4,
                "num_of_refresher_buffer_in_pool": 1,
                "deployed_device_list": [0],
                "max_batch_size": 64,
                "default_value_for_each_table": [0.0, 0.5],
                "maxnum_des_feature_per_sample": 26,
                "maxnum_catfeature_query_per_table_per_sample": [2, 26],
                "embedding_vecsize_per_table": [1, 15],
                "embedding_table_names": ["table1", "table2"],
                "refresh_delay": 0,
                "refresh_interval": 10,
                "hit_rate_threshold": 0.8,
                "gpucacheper": 0.1,
                "embedding_cache_type": "dynamic",
                "gpucache": True,
                "cache_refresh_percentage_per_iteration": 0.2,
                "label_dim": 1,
                "slot_num": 10,
                "use_context_stream": False,
            }
        ],
        "volatile_db": {
            "type": "redis_cluster",
            "address": "127.0.0.1:7003,127.0.0.1:7004,redis-3",
            "user_name": "default",
            "password": "a secret",
            "num_partitions": 8,
            "allocation_rate": 268435456,
            "shared_memory_size": 17179869184,
            "shared_memory_name": "hctr_mp_hash_map_database",
            "shared_memory_auto_remove": True,
            "max_batch_size": 65536,
            "enable_tls": False,
            "tls_ca_certificate": "cacertbundle.crt",
            "tls_client_certificate": "client_cert.pem",
            "tls_client_key": "client_key.pem",
            "tls_server_name_identification": "redis.localhost",
            "overflow_margin": 10000000,
            "overflow_policy": "evict_oldest",
            "overflow_resolution_target": 0.7,
            "initialize_after_startup": True,
            "initial_cache_rate": 0.5,
            "cache_missed_embeddings": False,
            "update_filters": [".+"],
        },
        "persistent_db": {
            "type": "rocks_db",
            "path": "/tmp/rocksdb",
            "num_threads": 16,
            "read_only": False,
            "max_batch_size": 65536,
            "update_filters": ["^hps_wdl.+$"],
        },
        "update_source": {
            "type": "kafka_message_queue",
            "brokers": "127.0.0.1:9092;10.0.0.2:9092",
            "metadata_refresh_interval_ms": 30000,
            "poll_timeout_ms": 500,
            "receive_buffer_size": 262144,
            "max_batch_size": 8192,
            "failure_backoff_ms": 50,
            "max_commit_interval": 32,
        },
    }


def of_strings(directory: Path | str = "/model") -> dict[str, Any]:
    """As Merlin's notebooks write it: numbers and truth values are strings, and no database is named."""
    return {
        "supportlonglong": "true",
        "models": [
            {
                "model": "movielens_hugectr",
                "sparse_files": [f"{directory}/0_sparse_1900.model"],
                "dense_file": f"{directory}/_dense_1900.model",
                "network_file": f"{directory}/1/movielens.json",
                "num_of_worker_buffer_in_pool": "1",
                "num_of_refresher_buffer_in_pool": "1",
                "cache_refresh_percentage_per_iteration": "0.2",
                "deployed_device_list": ["0"],
                "max_batch_size": "64",
                "embedding_vecsize_per_table": ["16"],
                "default_value_for_each_table": ["0.0", "0.0"],
                "hit_rate_threshold": "0.9",
                "gpucacheper": "0.5",
                "gpucache": "true",
            }
        ],
    }


def write_json(path: Path, data: dict[str, Any]) -> Path:
    path.write_text(json.dumps(data, indent=2))
    return path
