"""The pool's core: requests and workers, and the policy that decides on them. Runs in the pool's process; no I/O."""
