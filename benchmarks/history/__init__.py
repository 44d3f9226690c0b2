"""Random faults, and a checker over the history of all requests: `python -m benchmarks.history`."""
