"""This computer: processors, memory, cgroups, limits of the process, meters."""
