"""The ruler: load on a service from outside, and what its callers get. Runs in the process that measures."""
