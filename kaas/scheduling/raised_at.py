"""The line on which a policy raised, and its errors and values in words, whatever their own code does."""

from __future__ import annotations

from collections.abc import Callable
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


def text_of(make: Callable[[object], str], value: object) -> str:
    """Return make(value), where make is str or repr; if the code of the value's class raises, the class's name."""
    try:
        return make(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the text says so
        return f"<{type(value).__name__}, whose text raised {type(error).__name__}>"


def error_text(error: BaseException) -> str:
    """Return an error's class and message."""
    return f"{type(error).__name__}: {text_of(str, error)}"
