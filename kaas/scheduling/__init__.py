"""The request that runs next, and its worker: events in, decisions out. Runs in the pool and in the simulator.

Pure, but for `recording`, which writes and reads files.
"""
