"""Errors of requests that need more memory than a device has."""

from __future__ import annotations

from typing import Any

from kaas.errors import RequestTooLarge
from kaas.ktask.graph import KTask


def too_large(
    task: KTask | None, needed_bytes: int, capacity_bytes: int, device: str, taken_bytes: int = 0
) -> RequestTooLarge:
    """Return the error of a request or, without a kTask, of loading objects.

    taken_bytes: of the device, which are no part of the capacity now.
    """
    what, largest, fields = describe(task)
    besides = (
        f" besides {taken_bytes} that variables of code, ends of pages or other programs take" if taken_bytes else ""
    )
    return RequestTooLarge(
        f"{what} needs {needed_bytes} bytes at once{largest}; {device} has {capacity_bytes}{besides}, "
        f"{needed_bytes - capacity_bytes} too few",
        **fields,
        device=device,
        needed_bytes=needed_bytes,
        capacity_bytes=capacity_bytes,
        excess_bytes=needed_bytes - capacity_bytes,
    )


def describe(task: KTask | None) -> tuple[str, str, dict[str, Any]]:
    """Return texts for errors: the request's name, a clause about its largest buffer, and the same as fields."""
    if task is None:
        return "prefetch", "", {"task": "prefetch"}
    buffer = task.largest_buffer
    clause = f" (its largest buffer, {buffer.name!r}, has {buffer.nbytes})"
    return f"kTask {task.label!r}", clause, {"task": task.label, "buffer": buffer.name, "buffer_bytes": buffer.nbytes}
