"""The experiments on NVIDIA GPUs, with models, matrices and constants of Table 1's sizes."""
