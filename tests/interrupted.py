"""Ctrl-C in a test, at a chosen point of a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import kaas

SOURCES = str(Path(kaas.__file__).parent)


def interrupted(do: Callable[[], Any], at: int) -> str:
    """Call a function, and interrupt it at one of the points in kaas at which Python notices Ctrl-C.

    Return the place, or "" if the function has fewer points.
    """
    points, place = count(1), ""

    def notice(frame: FrameType, event: str, _: Any) -> None:
        nonlocal place
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(SOURCES) and next(points) == at:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}, {event}"
            raise KeyboardInterrupt

    sys.setprofile(notice)
    try:
        do()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return place
