"""The pool: policies that decide, a core that carries decisions out, and the adapter that puts it on Ray."""

from __future__ import annotations

import logging

# Without logging of its own, a program gets no messages about the pool's workers: the errors of its requests suffice.
logging.getLogger(__name__).addHandler(logging.NullHandler())
