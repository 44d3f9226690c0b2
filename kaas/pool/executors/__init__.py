"""The pool's side of its executors: what it sends them, and their replies. Runs in the pool's process."""
