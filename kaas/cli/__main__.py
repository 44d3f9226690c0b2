"""`python -m kaas.cli`: the command line."""

from __future__ import annotations

from kaas.cli.main import main

main()
