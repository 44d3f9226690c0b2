"""The request: a graph of kernels with its buffers, their libraries, and their encodings.

Pure values; used by every process.
"""
