"""The names of the ways to search a server's configurations."""

GUIDED, HERCULES, ALGORITHM_1, DEEPRECSYS, BAYMAX = "guided", "hercules", "algorithm-1", "deeprecsys", "baymax"
