"""Checks of policies' options: each wrong one is a `PolicyError` that names it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kaas.errors import PolicyError


def check_number(policy: str, name: str, value: object, *, most: float | None = None) -> None:
    """Check that an option is a finite number from 0 on, or to `most`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf or (most is not None and value > most):  # type: ignore[operator]
        raise PolicyError(
            f"{name} is a number from 0 {'on' if most is None else f'to {most}'}, not {value!r}", policy=policy
        )


def check_whole(policy: str, name: str, value: object, *, least: int = 0) -> None:
    """Check that an option is a whole number."""
    if type(value) is not int or value < least:
        raise PolicyError(f"{name} is a whole number from {least} on, not {value!r}", policy=policy)


def check_most(policy: str, name: str, value: object, most: object, of: str) -> None:
    """Check that a whole number is not above what every device has."""
    if isinstance(value, int) and isinstance(most, int) and value > most:
        raise PolicyError(f"{name} is {value}, but a device has {most} {of}", policy=policy)


def check_choice(policy: str, name: str, value: object, choices: Sequence[str]) -> None:
    """Check that an option is one of some words."""
    if value not in choices:
        raise PolicyError(f"{name} is one of {', '.join(choices)}, not {value!r}", policy=policy)


def check_flag(policy: str, name: str, value: object) -> None:
    """Check that an option is True or False."""
    if not isinstance(value, bool):
        raise PolicyError(f"{name} is True or False, not {value!r}", policy=policy)
