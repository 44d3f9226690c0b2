"""Building of functions from clients' code. Runs in the server's process."""
