"""The pool's core: requests and workers, and the policy that decides on them. Runs in the pool's process.

Opens no socket and no process. What it keeps goes to a Store and to the record of a policy's events."""
