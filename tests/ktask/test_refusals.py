"""Values of the wrong kind anywhere in a kTask are refused as InvalidGraph; integers of any library are integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import InvalidGraph
from tests.ktask.strategies import PTX

LIBRARY = kaas.Library.from_ptx(PTX)
A: Any = kaas.Buffer("a", 64, "int32")
any_: Any = kaas


def kernel(**changes: Any) -> kaas.Kernel:
    given: dict[str, Any] = {"symbol": "k", "grid": 1, "block": 32, "args": [kaas.InOut(A)], **changes}
    return kaas.Kernel(LIBRARY, **given)


REFUSED: dict[str, Callable[[], Any]] = {
    "shape beyond everything": lambda: kaas.Buffer("a", 1 << 70),
    "shape beyond everything in all": lambda: kaas.Buffer("a", (1 << 40, 1 << 40)),
    "lone surrogate": lambda: kaas.Buffer("\ud800", 1),
    "a dtype that NumPy and CUDA take for two": lambda: kaas.Buffer("a", 1, "float"),
    "NUL in a symbol": lambda: kernel(symbol="k\0x"),
    "grid beyond everything": lambda: kernel(grid=1 << 70),
    "shared memory beyond everything": lambda: kernel(shared_bytes=1 << 70),
    "args are none": lambda: kernel(args=None),
    "kernels are none": lambda: any_.KTask(None, [A]),
    "outputs are none": lambda: any_.KTask([kernel()], None),
    "pointers are none": lambda: any_.Pointers(None),
    "fields by text": lambda: any_.Struct(bytes(16), {"0": kaas.In(A)}),
    "fields by fractions": lambda: any_.Struct(bytes(16), {1.5: kaas.In(A)}),
    "fields in a list": lambda: any_.Struct(bytes(16), [kaas.In(A)]),
    "alignment as text": lambda: any_.Struct(bytes(16), align="16"),
    "struct of text": lambda: any_.Struct("abc"),
    "kind of a scalar": lambda: any_.Scalar("f", []),
    "bytes of a literal": lambda: any_.Literal("i32", 5),
    "a truth as iterations": lambda: kaas.KTask([kernel()], [A], iterations=True),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    with pytest.raises(InvalidGraph):
        REFUSED[name]()


def test_integers_of_numpy_are_integers() -> None:
    four: Any = np.int64(4)
    mine = kaas.KTask([kernel(args=[kaas.InOut(A, 4)], shared_bytes=4)], [A], iterations=4)
    other = kaas.KTask([kernel(args=[kaas.InOut(A, four)], shared_bytes=four)], [A], iterations=four)
    assert other == mine
    assert kaas.View(b"", four).offset_bytes == 4


def test_the_scalars_of_a_ktask_cannot_be_changed() -> None:
    scalars: Any = kaas.KTask([kernel(args=[kaas.InOut(A), kaas.Scalar("f", "f32")])], [A]).scalars
    with pytest.raises(TypeError):
        scalars["g"] = "f32"
