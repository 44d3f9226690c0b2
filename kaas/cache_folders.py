"""The folder of compiled kernels, headers and models."""

from __future__ import annotations

from pathlib import Path

from kaas.errors import DeviceUnavailable


def cache_root() -> Path:
    """Return KaaS's cache folder: `kaas` below $XDG_CACHE_HOME or ~/.cache.

    Where neither can be written, it is a folder of this user among the temporary files. The folder exists, belongs to
    this user, and no other user can write there.

    Raises:
        DeviceUnavailable: there is no such folder and none can be made.
    """
    from softgpu.user_cache import cache_root as of_user  # late: `import kaas` stays light

    try:
        return of_user("kaas")
    except OSError as error:
        raise DeviceUnavailable(str(error)) from None
