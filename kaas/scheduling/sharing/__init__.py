"""Devices shared by parts of their SMs and of their time, as in FaST-GShare. Runs in the pool and the simulator."""
