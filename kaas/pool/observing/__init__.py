"""What a pool tells of its work: events, metrics, traces, the ledger of each client. Runs in the pool's process."""
