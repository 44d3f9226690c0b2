"""Calls over connections that break, without I/O: no socket, no clock, no thread.

`client_half`: the calls of a program. `kaas.api.rpc_client` (to a pool) and `kaas.client.remote_calls` (to a server)
are its adapters: a connection, a lock, a thread. `server_half`: the waits of remote sessions for replies;
`kaas.server.reply_tracker` is its adapter. `credit`: the requests that a remote client may have open. Each half begins
with its table of states; docs/architecture.md has both stacks side by side.
"""
