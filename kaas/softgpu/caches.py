"""Where the software GPU keeps what it compiles: the driver library and kernels."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from kaas.errors import DeviceUnavailable


@cache
def cache_root() -> Path:
    """`kaas` below $XDG_CACHE_HOME or ~/.cache; where neither can be written, a folder of this user's among the
    temporary files. It exists and can be written.

    Raises:
        DeviceUnavailable: nowhere can be written.
    """
    tried = []
    for candidate in (*_homes(), Path(tempfile.gettempdir()) / f"kaas-{os.getuid()}"):
        try:
            candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            tried.append(str(error))
            continue
        # code is loaded from here: nobody else may have put it there
        if candidate.stat().st_uid == os.getuid() and os.access(candidate, os.W_OK):
            return candidate
        tried.append(f"{candidate} is not this user's to write")
    raise DeviceUnavailable(f"the software GPU finds no folder for what it compiles: {'; '.join(tried)}")


def _homes() -> list[Path]:
    chosen = os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return [Path(chosen) / "kaas"]
    try:
        return [Path.home() / ".cache" / "kaas"]
    except RuntimeError:  # this user has no home folder
        return []
