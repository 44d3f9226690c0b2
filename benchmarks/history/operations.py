"""The operations of the history's programs, drawn by a seed, and the results that a model predicts.

A program has threads, each with an object at the server that only this thread changes, and all threads of the program
read. All elements of an array are equal, so that a number stands for an array.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import kaas

PTX = Path(__file__).parent.parent / "kernels" / "advance.ptx"
ELEMENTS = (1024, 17 << 10)
"""The elements of the arrays of each thread: the bytes of the second thread's go in an upload of their own."""
THREADS = len(ELEMENTS)
STEP = "benchmarks.history.operations:widened"
SHARES = {"plain": 3, "timed": 3, "again": 2, "stepped": 2, "advance": 8, "put": 3, "get": 3, "peek": 3}
"""How often each kind of operation is drawn."""
CALLS = {"plain": 64, "timed": 128, "again": 256, "stepped": 512, "advance": 1024}
"""Kinds that call the function of their name, and the threads of its blocks: functions of equal code would be one."""
WAYS = ("once", "once", "deadline", "cancel", "twice")
"""How the first attempt of an advance is made; further ones follow until an answer is sure."""
PAUSE_S = 0.08
"""The mean pause between two operations of a thread."""


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operation of a thread.

    Fields:
        name: CLIENT/THREAD/NUMBER, which is the idempotency key too. do: its kind. object: the object that it reads or
            changes. value: that is put, or sent to a function. w: the function's scalar. way: one of WAYS. within_s:
            the seconds of a deadline, or until it is cancelled. pause_s: before it.
    """

    name: str
    do: str
    object: str = ""
    value: int = 0
    w: int = 0
    way: str = "once"
    within_s: float = 0.0
    pause_s: float = 0.0

    @property
    def client(self) -> str:
        return self.name.partition("/")[0]

    @property
    def deadline_s(self) -> float | None:
        return self.within_s if self.way == "deadline" else None


def drawn(seed: int, client: str, thread: int, number: int) -> Operation:
    """Return an operation, without its object: it depends on the seed and its place, and on nothing that happens."""
    name = f"{client}/{thread}/{number}"
    chance = random.Random(f"{seed} {name}")
    do = chance.choices([*SHARES], [*SHARES.values()])[0]
    way = {"timed": ("deadline", "cancel"), "again": ("again",), "advance": WAYS}.get(do, ("once",))
    return Operation(
        name,
        do,
        value=chance.getrandbits(32),
        w=chance.getrandbits(32),
        way=chance.choice(way),
        within_s=round(0.02 * 100 ** chance.random(), 3),
        pause_s=chance.expovariate(1 / PAUSE_S),
    )


def advanced(value: int, w: int) -> int:
    """Return the kernel's result."""
    return (3 * value + w) % 2**32


def expected(operation: Operation) -> int:
    """Return the result of a call whose input is sent."""
    return advanced(operation.value, operation.w)


def task(do: str, elements: int) -> kaas.KTask:
    """Return the kTask of now = told = before * 3 + w, for one of CALLS."""
    before, now, told = (kaas.Buffer(name, elements, "uint32") for name in ("before", "now", "told"))
    args: list[Any] = [kaas.In(before), kaas.Out(now), kaas.Out(told), kaas.Scalar("w", "u32"), kaas.u32(elements)]
    kernel = kaas.Kernel(kaas.Library.from_file(PTX), "advance", elements // CALLS[do], CALLS[do], args)
    return kaas.KTask([kernel], [now, told])


def array(value: int, elements: int) -> np.ndarray[Any, Any]:
    return np.full(elements, value, np.uint32)


def number_of(values: np.ndarray[Any, Any]) -> int:
    """Return the number that an array stands for, -1 if its elements differ."""
    first = int(values.flat[0])
    return first if (values == first).all() else -1


def widened(values: Mapping[str, bytes]) -> dict[str, np.ndarray[Any, Any]]:
    """Make a call's input of two numbers in words: the server's step."""
    value, elements = map(int, values["text"].split())
    return {"before": array(value, elements)}
