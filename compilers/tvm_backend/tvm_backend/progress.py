"""The progress of a compilation: values for a callback, or a line on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a compilation.

    Args:
        stage: "import", "lower", "tune", "generate", "library", "tasks" or "cache".
        done, total: the units of the stage: functions, kernels or trials. A stage ends with done == total.
        detail: a note on the current unit.
    """

    stage: str
    done: int
    total: int
    detail: str = ""


Report = Callable[[Progress], None]


@contextmanager
def reporting(progress: Report | None) -> Iterator[Report]:
    """Yield the callback; without one, a function that shows a line on stderr if that is a terminal, else nothing."""
    if progress is not None:
        yield progress
        return
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("compiling") as status:

        def show(step: Progress) -> None:
            count = f" {step.done} of {step.total}" if step.total > 1 else ""
            status.update(f"{step.stage}{count} {step.detail}".rstrip())

        yield show
