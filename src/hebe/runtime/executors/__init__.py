"""Run a batch: plain, GIL-free, pipelined, on a GPU."""
