"""The pool: policies that decide, a core that carries decisions out, and the adapter that puts it on Ray."""

from __future__ import annotations

import logging

# A program that has not set up logging hears nothing of its pool's workers: what concerns it, its requests say.
logging.getLogger(__name__).addHandler(logging.NullHandler())
