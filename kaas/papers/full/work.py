"""A workload in the form in which a GPU runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING

from kaas.ktask.graph import KTask

if TYPE_CHECKING:
    from kaas.models.constants_file import Array

MARK = 1e-6
"""The distance of constants' last numbers: a cache keeps equal contents once, and results stay as they are."""


class Work(ABC):
    """A workload's kTask, its constants and its inputs; the names of buffers are those of the eTask's arguments."""

    @abstractmethod
    def task(self) -> KTask:
        """Return the kTask."""

    @abstractmethod
    def constant_names(self) -> Collection[str]:
        """Return the names of its buffers that are constants."""

    @abstractmethod
    def constants(self, value: float) -> dict[str, Array]:
        """Return the constants of the replica with this value."""

    @abstractmethod
    def inputs(self) -> dict[str, Array]:
        """Return what a client sends: the kTask's inputs, or those of the step before it."""

    @abstractmethod
    def answer(self, value: float) -> float:
        """Return the first number of a replica's result."""


def marked(array: Array, number: float) -> Array:
    """Return a copy of an array, whose content is that of no copy with another number."""
    copy = array.copy()
    copy.flat[-1] += MARK * number
    return copy
