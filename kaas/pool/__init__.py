"""The pool: carries out the decisions of a policy, on Ray or on plain processes. Runs in the pool's process.

`on_ray/fetching.py`, `on_ray/programs.py` and `on_ray/keeping.py` also run in programs and in tasks of Ray;
`on_processes/names.py` in programs, which find a pool by its name.
"""

from __future__ import annotations

import logging

# Without logging of its own, a program gets no messages about the pool's workers: the errors of its requests suffice.
logging.getLogger(__name__).addHandler(logging.NullHandler())
