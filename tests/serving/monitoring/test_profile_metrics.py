from tests.serving.profiled import served

from hebe.serving.hosting.profile_in_use import LoadWindow, ProfileInUse
from hebe.serving.monitoring.prometheus import profile_metrics


def samples(models):
    return {
        (sample.name, sample.labels.get("source")): sample.value
        for metric in profile_metrics(models)
        for sample in metric.samples
    }


def test_what_the_profile_says_stands_beside_what_is_measured(fake_host):
    ranker = fake_host.models["ranker"]
    assert samples(fake_host.hosted) == {}
    ranker.profile = ProfileInUse(served())
    assert samples(fake_host.hosted) == {
        ("hebe_profile_qps", None): 100.0,
        ("hebe_profile_power_watts", "estimated"): 30.0,
    }, "nothing was measured yet"
    ranker.profile.see(LoadWindow(180.0, 21_600, 0, 95.0, 25.0, power_estimated=False), "now")
    assert samples(fake_host.hosted) == {
        ("hebe_profile_qps", None): 100.0,
        ("hebe_profile_power_watts", "estimated"): 30.0,
        ("hebe_measured_qps", None): 120.0,
        ("hebe_measured_power_watts", "read"): 25.0,
    }
