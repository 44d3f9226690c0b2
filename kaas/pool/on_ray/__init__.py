"""A pool as a Ray actor: Ray starts its workers, notices their end and holds its results.

Runs in the pool's process.
"""
