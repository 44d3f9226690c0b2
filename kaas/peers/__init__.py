"""KaaS beside its peers, in one run: `kaas bench peers`. Runs in the process that measures, and in its children.

Each experiment has a file. A peer that is not installed is left out, and named.
"""
