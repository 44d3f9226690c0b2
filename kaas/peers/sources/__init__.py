"""Kernels in Python, which KaaS and an interpreter run from the same source."""
