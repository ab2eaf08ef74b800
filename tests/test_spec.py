import dataclasses

import pytest

from hebe.spec import (
    AcceleratorSpec,
    EmbeddingTableSpec,
    FeatureSpec,
    ModelSpec,
    OutOfRange,
    Pooling,
    ServerSpec,
    SpecError,
)

GPU = {
    "name": "gpu",
    "peak_flops_per_s": 1e13,
    "memory_bytes": 16 * 10**9,
    "memory_bandwidth_bytes_per_s": 9e11,
    "pcie_bandwidth_bytes_per_s": 1e10,
    "idle_power_watts": 40.0,
    "peak_power_watts": 300.0,
}
SERVER = {
    "name": "T",
    "cores": 4,
    "memory_bytes": 10**9,
    "memory_bandwidth_bytes_per_s": 1e10,
    "idle_power_watts": 50.0,
    "peak_power_watts": 200.0,
    "clock_hz": 2e9,
    "flops_per_cycle_per_core": 32.0,
    "memory_idle_power_watts": 10.0,
    "memory_peak_power_watts": 60.0,
}


def test_a_server_says_what_its_cores_can_do_at_most():
    assert ServerSpec(**SERVER).peak_flops_per_s == 4 * 2e9 * 32
    assert ServerSpec("T", 1, 1).peak_flops_per_s == 0.0


def test_a_server_is_frozen_and_comparable():
    server = ServerSpec(**SERVER, accelerator=AcceleratorSpec(**GPU))
    assert server == ServerSpec(**SERVER, accelerator=AcceleratorSpec(**GPU))
    with pytest.raises(dataclasses.FrozenInstanceError):
        server.cores = 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cores": 0}, "server type T: cores is 0"),
        ({"memory_bytes": 0.5}, "server type T: memory_bytes is 0.5"),
        ({"clock_hz": -1.0}, "server type T: clock_hz is -1.0"),
        ({"memory_bandwidth_bytes_per_s": float("nan")}, "memory_bandwidth_bytes_per_s is nan"),
        ({"price_per_hour": float("inf")}, "price_per_hour is inf"),
        ({"price_per_hour": 10**400}, "price_per_hour is 10+: must be a finite number"),
        ({"cores": 10**400}, "cores is 10+: must be below 2"),
        ({"flops_per_cycle_per_core": "32"}, "flops_per_cycle_per_core is '32'"),
        ({"llc_bytes": -1}, "llc_bytes is -1"),
        ({"near_memory_ranks": True}, "near_memory_ranks is True"),
        ({"idle_power_watts": 201.0}, "idle_power_watts is 201.0: must be at most peak_power_watts"),
        ({"memory_idle_power_watts": 61.0}, "memory_idle_power_watts is 61.0: must be at most memory_peak_power_watts"),
        ({"memory_idle_power_watts": 55.0}, "memory_idle_power_watts must be at most idle_power_watts"),
        ({"memory_peak_power_watts": 161.0}, "memory_peak_power_watts rises more above idle"),
    ],
)
def test_a_faulty_server_is_named_with_its_field(fields, message):
    with pytest.raises(SpecError, match=message):
        ServerSpec(**SERVER | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peak_flops_per_s": 0.0}, "accelerator gpu: peak_flops_per_s is 0.0: must be a finite number above 0"),
        ({"pcie_bandwidth_bytes_per_s": -1.0}, "pcie_bandwidth_bytes_per_s is -1.0"),
        ({"compute_units": 0}, "compute_units is 0"),
        ({"launch_overhead_s": -1e-6}, "launch_overhead_s is -1e-06"),
        ({"memory_bytes": 0}, "memory_bytes is 0"),
        ({"idle_power_watts": 301.0}, "idle_power_watts is 301.0"),
        ({"name": "a b"}, "accelerator name 'a b'"),
    ],
)
def test_a_faulty_accelerator_is_named_with_its_field(fields, message):
    with pytest.raises(SpecError, match=message):
        AcceleratorSpec(**GPU | fields)


def test_new_keys_are_for_features_that_would_refuse_them_and_not_for_a_dense_net_that_computes_with_keys():
    features = (FeatureSpec("f", "t", 1, Pooling.SUM), FeatureSpec("g", "t", 1, Pooling.SUM, OutOfRange.CLAMP))
    spec = ModelSpec("m", "imported", (EmbeddingTableSpec("t", 5, 2),), features)
    taking = spec.taking_new_keys()
    assert [feature.out_of_range for feature in taking.features] == [OutOfRange.UNKNOWN, OutOfRange.CLAMP]
    assert (spec.takes_new_keys, taking.takes_new_keys) == (False, True)
    assert ModelSpec.from_dict(taking.to_dict()) == taking
    with pytest.raises(SpecError, match=r"model m: its DenseNet computes with keys.*cannot take new keys"):
        dataclasses.replace(spec, settings={"reads_keys": True}).taking_new_keys()
