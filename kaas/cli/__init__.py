"""The command line `kaas`. Runs in the process of a command."""
