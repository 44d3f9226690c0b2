"""What a function does with shares of a device: `kaas profile`. Runs in the process that measures."""
