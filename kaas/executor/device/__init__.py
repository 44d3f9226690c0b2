"""The device seam: memory, code, graphs and streams of one GPU through the CUDA driver API.

It runs in an executor's process.
"""
