"""Windows: addresses of a device that the kernels of one client cannot leave, and the memory there."""
