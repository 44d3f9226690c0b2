"""The processes of executors and of eTask workers: their work, how they are started, and how they are confined.

`processes`, `process_orders` and `sandbox` also run in the processes that start them: programs, pools and servers.
"""
