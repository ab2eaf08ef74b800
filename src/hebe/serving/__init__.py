"""The live driver and the Open Inference Protocol front ends."""
