import math

import numpy as np


def test_redis_that_others_write_to_is_filled_once_level_3_has_all_updates(open_tiers, shared_redis_config) -> None:
    tiers = open_tiers(shared_redis_config)
    level_2 = tiers.lookup.volatile.store
    tiers.start()
    assert level_2.size("users") == level_2.size("items") == 0
    level_2.insert("users", np.array([5]), np.full((1, 4), -5, np.float32))
    tiers.lookup.volatile.fills.level_3_has_s = math.inf
    steps = iter([True, False])
    tiers.fill_level_2(lambda: next(steps))
    assert level_2.size("users") == 2048
    tiers.fill_level_2(lambda: True)
    assert (level_2.size("users"), level_2.size("items")) == (3000, 600)
    rows, found = np.empty((3000, 4), np.float32), np.empty(3000, np.bool_)
    level_2.query("users", np.arange(3000), rows, found)
    assert rows[:, 0].tolist() == [*range(5), -5, *range(6, 3000)]
    level_2.delete("users", np.arange(1, 3000))
    level_2.delete("items", np.arange(600))
    tiers.fill_level_2(lambda: True)
    assert (level_2.size("users"), level_2.size("items")) == (1, 0), "that was for the start"
    tiers.close()
    again = open_tiers(shared_redis_config)
    again.lookup.volatile.fills.level_3_has_s = math.inf
    again.fill_level_2(lambda: True)
    level_2 = again.lookup.volatile.store
    assert (level_2.size("users"), level_2.size("items")) == (1, 600), "others fill what has some rows"
