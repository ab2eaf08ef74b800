"""What all kernels are made of: vectors, raw memory, atomic operations, the steps of XXH64."""
