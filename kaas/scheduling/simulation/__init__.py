"""What the simulator is made of: scenarios, their reading, virtual devices, and what came of it all."""
