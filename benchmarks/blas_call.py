"""The cost of making a matrix product's kernels: `cutlass_blas.gemm` for a new shape, over one ctypes call.

    python -m benchmarks.blas_call [--json] [--rounds 1000]

The ctypes call is that of the library's host adapter, which fills in a kernel's parameters: ctypes puts 14 sizes and
strides, Python numbers, into a struct and passes the struct's address. `call_alone_us` is the same call with the struct
already filled. A known shape was used before, with other buffers. The calls take turns, each call is timed by itself,
and medians are compared. No device is needed.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter
from typing import Any

import cutlass_blas
import kaas
from benchmarks.report import parser, positive, report
from cutlass_blas import adapter

WARM_UP = 20
SIDE = 512

Matrices = tuple[kaas.Buffer, kaas.Buffer, kaas.Buffer]


class Question(ctypes.Structure):
    """A request to the adapter, as `cutlass_blas.adapter` lays it out, with room for the reply."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("mode", "m", "n", "k", "count")),
        *((f"stride_{matrix}", ctypes.c_int64) for matrix in "abcd"),
        *((f"leading_{matrix}", ctypes.c_int64) for matrix in "abcd"),
        ("flags", ctypes.c_int64),
        ("alpha", ctypes.c_byte * 16),
        ("beta", ctypes.c_byte * 16),
        ("answer", ctypes.c_byte * 1056),
    )


def matrices(m: int, n: int, k: int, suffix: str = "") -> Matrices:
    a, b, c = (kaas.Buffer(f"{name}{suffix}", shape, "float32") for name, shape in
               (("a", (m, k)), ("b", (k, n)), ("c", (m, n))))  # fmt: skip
    return a, b, c


def fresh_shapes() -> Iterator[tuple[int, int, int]]:
    """Yield shapes from 512 on, each once, including odd ones."""
    for distance in itertools.count(1):
        for m, n in itertools.product(range(distance + 1), repeat=2):
            if distance in (m, n):
                yield SIDE + m, SIDE + n, SIDE + distance


def ctypes_call() -> tuple[Callable[[], object], Callable[[], object]]:
    """Return two calls of the adapter for such shapes: with arguments as numbers, and with a filled struct."""
    (kernel,) = cutlass_blas.gemm(*matrices(SIDE, SIDE, SIDE))
    fill: Any = adapter._adapter(kernel.symbol).fill
    one, zero = ((ctypes.c_byte * 16)(*struct.pack("<f", value)) for value in (1.0, 0.0))
    n = SIDE

    def numbers() -> object:
        return fill(ctypes.byref(Question(0, n, n, n, 1, 0, 0, 0, 0, n, n, n, n, 0, one, zero)))

    question = Question(0, n, n, n, 1, 0, 0, 0, 0, n, n, n, n, 0, one, zero)
    address = ctypes.addressof(question)

    def alone() -> object:
        return fill(address) or question  # keeps the struct alive as long as this function

    if numbers() != 0 or fill(address) != 0:
        raise SystemExit(f"the adapter refuses {kernel.symbol} for {n} × {n} × {n}")
    return numbers, alone


def timed(call: Callable[..., object], *given: object) -> float:
    """Return the seconds of one call."""
    began = perf_counter()
    call(*given)
    return perf_counter() - began


def measure(rounds: int) -> dict[str, float]:
    """Return median microseconds."""
    numbers, alone = ctypes_call()
    gemm = cutlass_blas.gemm
    times: dict[str, list[float]] = {"new_shape": [], "known_shape": [], "ctypes_call": [], "call_alone": []}
    for turn, shape in enumerate(itertools.islice(fresh_shapes(), WARM_UP + rounds)):
        fresh, again = matrices(*shape), matrices(SIDE, SIDE, SIDE, str(turn))
        took = timed(gemm, *fresh), timed(gemm, *again), timed(numbers), timed(alone)
        if turn >= WARM_UP:
            for values, took_s in zip(times.values(), took, strict=True):
                values.append(took_s)
    return {name: 1e6 * median(values) for name, values in times.items()}


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--rounds", type=positive, default=1000)
    chosen = options.parse_args()
    found = measure(chosen.rounds)
    detail: dict[str, Any] = {f"{name}_us": round(value, 2) for name, value in found.items()}
    detail["known_over_ctypes"] = round(found["known_shape"] / found["ctypes_call"], 2)
    report(
        "blas_call", {"params_over_ctypes": (found["new_shape"] / found["ctypes_call"], "<=", 20)}, detail, chosen.json
    )


if __name__ == "__main__":
    main()
