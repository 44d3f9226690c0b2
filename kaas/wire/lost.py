"""Outputs that ended with the executor that kept them, and what tells that a request reads one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Lost:
    """How to make an output anew that ended with its executor; what it takes lives as long as somebody can name it.

    Fields:
        message, refs: the invocation, without anything to keep. output: which one of how many outputs.
    """

    message: bytes
    refs: Sequence[Any] = field(repr=False)
    output: int
    outputs: int


class InputLost(Exception):
    """An input of a request is Lost. key: of the output in the cache of the device that had it."""

    def __init__(self, key: bytes, lost: Lost) -> None:
        super().__init__("the executor that had it ended")
        self.key = key
        self.lost = lost
