"""Libraries out of kernels of other makers: CUDA C++, CuPy, Triton, numba-cuda. `kaas.Library.from_...` loads these."""
