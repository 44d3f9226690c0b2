"""A pool without Ray: a process that starts its workers as child processes. Runs in the pool's process."""
