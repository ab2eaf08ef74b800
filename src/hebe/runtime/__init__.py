"""Effects of scheduling decisions on this machine: workers, pinning, loaded models."""
