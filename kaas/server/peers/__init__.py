"""Peers of a server: their TCP connections, keys, revocations and signatures. Runs in the server's process."""
