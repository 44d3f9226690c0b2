"""Reports of a pool's work: events, metrics, traces, the ledger of each client. Runs in the pool's process."""
