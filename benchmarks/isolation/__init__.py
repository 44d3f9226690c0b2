"""What each level of isolation costs, and what it stops: `python -m benchmarks.isolation`."""
