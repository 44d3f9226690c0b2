"""Programs outside the cluster: what they say to a pool over ZeroMQ, and who may."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "signing":  # what a client's program uses by this name
        return import_module("kaas.remote.signing")
    raise AttributeError(f"module 'kaas.remote' has no attribute {name!r}")
