"""Clients of a server: their TCP connections, keys, revocations and signatures. Runs in servers and commands."""
