"""The pool's core: requests and workers, and the policy that decides on them. Runs in the pool's process.

Opens no socket and no process. Its lasting state goes to a Store, and the record of a policy's events to a file."""
