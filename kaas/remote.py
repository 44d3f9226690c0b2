"""The module `kaas.remote.signing`, which clients of a server use in addition to `kaas.Client`."""

from __future__ import annotations

from kaas.server.peers import signing

__all__ = ["signing"]
