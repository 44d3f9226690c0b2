"""What a client of a server uses beside `kaas.Client`: `kaas.remote.signing`."""

from __future__ import annotations

from kaas.server.peers import signing

__all__ = ["signing"]
