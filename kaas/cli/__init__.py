"""The command line `kaas`."""
