"""Policies compared by many simulated runs: their figures, and those of several seeds in parallel processes."""
