"""Who runs next, and where: events in, decisions out. Pure; runs in the pool's process, and in the simulator."""
