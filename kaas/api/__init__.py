"""The calls of a program: init, invoke, call, register, eTasks, sessions. Runs in the caller's process."""
