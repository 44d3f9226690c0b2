"""What of a model cannot become a kTask: one error that lists all of it with its places."""

from __future__ import annotations

from collections.abc import Sequence

from kaas.errors import KaasError

Problem = tuple[str, str]
"""A place in the model, and what stands there."""


class NotLowered(KaasError):
    """The lowered model does what a kTask cannot: calls the host, branches on values, has unknown shapes.

    Fields:
        problems: of each a place in the model, and what stands there.
    """

    problems: tuple[Problem, ...]


class UnknownTarget(KaasError):
    """No such GPU architecture to compile for.

    Fields:
        target: as it was given.
    """

    target: str


def check(problems: Sequence[Problem]) -> None:
    """
    Raises:
        NotLowered: there are problems.
    """
    if problems:
        listed = "\n".join(f"  {place}: {what}" for place, what in problems)
        raise NotLowered(f"no kTask can do this:\n{listed}", problems=tuple(problems))
