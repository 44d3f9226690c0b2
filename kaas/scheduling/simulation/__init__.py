"""The parts of the simulator: scenarios, their reading, virtual devices and results."""
