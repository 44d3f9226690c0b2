"""Plans: a kTask prepared for one device, with its memory layout and its CUDA graph. An executor makes them."""
