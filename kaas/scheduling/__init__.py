"""The choice of the next request and its device: events in, decisions out. Pure; runs in the pool and the simulator."""
