"""The processes of executors and of eTask workers: their work, start and confinement. Runs in them.

`processes`, `process_orders` and `sandbox` also run in the processes that start them: programs, pools and servers.
"""
