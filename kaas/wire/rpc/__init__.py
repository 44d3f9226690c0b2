"""Reconnecting remote calls without I/O: no socket, no clock, no thread. Both ends of both protocols stand on it.

`client_half` has the calls of a program: `kaas.api.rpc_client` (to a pool) and `kaas.client.remote_calls` (to a server)
are the adapters around it. `server_half` has the waits of sessions for runs: `kaas.pool.clients` and `kaas.server` are
the adapters around it. Each half opens with its table of states.
"""
