"""The experiments of the papers, on KaaS: `kaas papers`. Runs in the process that measures."""
