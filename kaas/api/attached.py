"""The session of a process: the session that its `init` opened, or, in a Ray task, that of its program."""

from __future__ import annotations

import sys

from kaas.api.session import HERE, Session
from kaas.errors import NotInitialized


def current_session(pool: str | None = None) -> Session:
    """Return this process's session.

    A Ray task or actor that has none, or whose pool is gone, is attached to a running pool: to `pool`, else to the pool
    of the program that it belongs to.

    Raises:
        NotInitialized
    """
    if (usable := HERE.usable()) is not None:
        return usable
    session = HERE.session
    if sys.modules.get("ray") is not None:
        from kaas.api import ray_session

        return ray_session.session_for(pool)
    if session is None or not session.alive():
        raise NotInitialized("call kaas.init() first")
    return session
