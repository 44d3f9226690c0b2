"""What a program calls: init, invoke, call, register, eTasks, sessions. Runs in the caller's process."""
