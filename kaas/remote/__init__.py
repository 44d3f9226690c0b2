"""Programs outside the cluster: what they say to a pool over ZeroMQ, and who may."""
