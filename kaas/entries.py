"""What is known of a kernel beside its code: how its maker calls it, what a launch of it needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel of a library, as its maker knows it. It counts in no hash: it only helps to write down a launch.

    Fields:
        symbol: in the code image.
        name: by which users know it: a C++ name such as "scale<float>", or that of a Python function.
    """

    symbol: str
    name: str
