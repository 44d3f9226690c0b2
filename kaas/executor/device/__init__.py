"""The device seam: memory, code, graphs and streams of one GPU through the CUDA driver API.

It runs in an executor's process. `host_arrays` also runs in programs, whose inputs may be arrays on a CUDA device.
"""
