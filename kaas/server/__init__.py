"""`kaas serve`: sessions, invocations and stores of clients from outside. Runs in the pool's process, except
`steps/step_process.py` (a process for each copy of a cTask) and `running/named_etask.py` (the workers of eTasks).

`running/ray_server.py` runs also in the command that holds a server on Ray open, and the files of keys, configuration
and state in the commands that make and check them.
"""
