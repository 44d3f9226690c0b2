"""The tiered cache of one device: device memory, page-locked host memory, host memory.

Runs in an executor's process.
"""
