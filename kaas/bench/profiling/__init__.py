"""The work of a function on shares of a device: `kaas profile`. Runs in the process that measures."""
