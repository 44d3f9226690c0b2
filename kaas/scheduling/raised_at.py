"""The line on which a policy raised."""

from __future__ import annotations

from pathlib import Path
from traceback import walk_tb


def raised_at(error: BaseException) -> str:
    """Return "file:line, in function" of the innermost frame that is not KaaS's own, else of the innermost one.

    The file has no folder, since clients read the message of a policy's error.
    """
    frames = list(walk_tb(error.__traceback__))
    own = [each for each in frames if each[0].f_globals.get("__name__", "").partition(".")[0] != "kaas"]
    frame, line = (own or frames)[-1]
    return f"{Path(frame.f_code.co_filename).name}:{line}, in {frame.f_code.co_name}"
