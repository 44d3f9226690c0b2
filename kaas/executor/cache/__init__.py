"""The tiered cache of one device: device memory, page-locked host memory, host memory.

It runs in an executor's process.
"""
