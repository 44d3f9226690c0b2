"""The executor: one device, its memory and its plans. Runs in an executor's process; `run_local` in a program's.

The modules that other folders import, such as the eviction rule for the simulator, also run there. Nothing here needs
Ray.
"""
