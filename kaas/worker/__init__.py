"""The processes of executors and of eTask workers: their work, start and confinement. Runs in them.

The modules that other folders import, such as `processes` and `sandbox`, also run in the processes that start workers.
"""
