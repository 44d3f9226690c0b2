"""Servers of the Open Inference Protocol under load. Runs in the process that measures."""
