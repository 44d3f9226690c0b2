"""The module `kaas.remote.signing`, which clients of a server use in addition to `kaas.Client`."""

from __future__ import annotations

import sys

from kaas.wire import signing

__all__ = ["signing"]

sys.modules[f"{__name__}.signing"] = signing  # for `from kaas.remote.signing import ...`: the module stands elsewhere
