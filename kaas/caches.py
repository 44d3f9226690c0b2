"""Where KaaS keeps what it compiles: the software GPU's driver and kernels, headers, models."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kaas.errors import DeviceUnavailable


def cache_root() -> Path:
    """`kaas` below $XDG_CACHE_HOME or ~/.cache; where neither can be written, a folder of this user's among the
    temporary files. It exists and can be written by this user, to whom it belongs.

    Raises:
        DeviceUnavailable: nowhere can be written.
    """
    tried = []
    for candidate in (*_homes(), Path(tempfile.gettempdir()) / f"kaas-{os.getuid()}"):
        try:
            candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
            owner = candidate.stat().st_uid
        except OSError as error:
            tried.append(str(error))
            continue
        # code is loaded from here: nobody else may have put it there
        if owner == os.getuid() and os.access(candidate, os.W_OK):
            return candidate
        tried.append(f"{candidate} is not this user's to write")
    raise DeviceUnavailable(f"there is no folder for what is compiled: {'; '.join(tried)}")


def _homes() -> list[Path]:
    chosen = os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return [Path(chosen) / "kaas"]
    try:
        return [Path.home() / ".cache" / "kaas"]
    except RuntimeError:  # this user has no home folder
        return []
