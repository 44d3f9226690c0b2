"""`kaas.Client`: a client of a server, outside its cluster and without Ray. Runs in the client's process."""
