"""`kaas serve`: sessions, invocations and stores of clients from outside. Runs in the pool's process."""
