"""Connections between processes: Unix sockets and ZeroMQ, listeners, the router of messages, shared memory."""
