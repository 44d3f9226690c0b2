"""The pool: carries out the decisions of a policy, on Ray or on plain processes. Runs in the pool's process.

The modules that sessions and commands import (`kaas.api`, `kaas.cli`) also run in programs.
"""

from __future__ import annotations

import logging

# Without logging of its own, a program gets no messages about the pool's workers: the errors of its requests suffice.
logging.getLogger(__name__).addHandler(logging.NullHandler())
