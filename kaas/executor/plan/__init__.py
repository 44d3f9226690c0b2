"""Plans: a kTask prepared for one device, with its memory layout and its CUDA graph. Runs in an executor's process."""
