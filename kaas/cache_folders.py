"""Where KaaS keeps what it compiles: kernels, headers, models."""

from __future__ import annotations

from pathlib import Path

from kaas.errors import DeviceUnavailable


def cache_root() -> Path:
    """Return `kaas` below $XDG_CACHE_HOME or ~/.cache; where neither can be written, a folder of this user among the
    temporary files. It exists, belongs to this user, and no other user can write there.

    Raises:
        DeviceUnavailable: there is no such folder and none can be made.
    """
    from softgpu.user_cache import cache_root as of_user  # late: `import kaas` stays light

    try:
        return of_user("kaas")
    except OSError as error:
        raise DeviceUnavailable(str(error)) from None
