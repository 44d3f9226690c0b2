"""Large results in the process that receives them: the value, or an error if the value ended with its pool."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayTaskError

from kaas.errors import ResultLost


def fetched(ref: Any) -> Any:
    """Return the value of a reference that takes the place of the value in a message.

    Ray calls this while it unpickles, where a raised error would lose its type. A returned error keeps its type: Ray
    raises it from ray.get and await, and for a task that has the value as its argument.
    """
    try:
        return ray.get(ref)
    except ObjectLostError as error:
        reason = f"{type(error).__name__}: {_first_sentence(error)}"
        lost = ResultLost(f"a finished result is gone, with the pool's process or with a node: {reason}", reason=reason)
        of_a_task: Any = RayTaskError
        return of_a_task("kaas", f"{type(lost).__name__}: {lost}", lost)


def _first_sentence(error: Exception) -> str:
    return str(error).partition(". ")[0].strip()
