"""`kaas serve`: sessions, invocations and stores of clients from outside. Runs in the pool's process.

`steps/step_process.py` runs in a process for each copy of a step, `running/ray_server.py` also in the command that
holds a server on Ray open, and the files of keys, configuration and state in the commands that make and check them.
"""
