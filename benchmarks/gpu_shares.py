"""Shares on a GPU: throughput over parts of the SMs, promised parts of the time, and parts beside each other.

    python -m benchmarks.gpu_shares [--json] [--device gpu] [--seconds 2] [--models resnet50 bert]

Functions are ResNet-50, BERT-base (batch 1, by TVM) and a matrix product of constants. Callers send the next request
when the last one is answered.

..._per_s_...: two callers' requests a second of a function whose kernels have a part of the SMs. On a GPU the parts are
green contexts.

share_error: two clients with eight callers each of the product, with leasts of 10 and 90, 30 and 70, 50 and 50 %: a
client's part of the requests over its part as promised, less 1: the worst of all.

beside_over_turns: the requests a second of two functions with a half of the SMs each, over the same with a half of the
time each; of the models, the median.

Needs a GPU, apache-tvm and the kernels of the BLAS library; models that TVM is not there for are left out. With
--device software everything runs on the software GPU, which says nothing about speed, but tries every line.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np

import cutlass_blas
import kaas
from benchmarks.models import MODELS
from benchmarks.report import Bar, parser, positive, report
from benchmarks.shares import QUOTAS, Callers
from kaas.errors import DeviceUnavailable
from kaas.executor.local import executor_for

PARTS = (1.0, 0.5, 0.25, 0.125)
SIDE = {"gpu": 4096, "software": 128}
"""Rows and columns of the matrices of the product: on a GPU it fills all SMs for some milliseconds."""
SLOTS = 4
CALLERS = 8
"""Of each client: while one waits for its reply, others' requests are there."""


def product(kind: str) -> kaas.Function:
    """Return the matrix product of two constants."""
    side = SIDE[kind]
    a, b, c = (kaas.Buffer(name, (side, side), "float32") for name in "abc")
    rng = np.random.default_rng(1)
    matrices = {name: rng.random((side, side), np.float32) for name in "ab"}
    return kaas.register(kaas.KTask(cutlass_blas.gemm(a, b, c), [c], name="gemm"), matrices)


class Bound:
    """A function with its inputs: `call` takes none, as that of a product."""

    def __init__(self, function: kaas.Function, inputs: dict[str, Any]) -> None:
        self._function, self._inputs = function, inputs

    def call(self) -> kaas.Future:
        return self._function.call(**self._inputs)


@contextmanager
def pool(kind: str) -> Iterator[None]:
    """A pool with one device, as this process's session."""
    name = f"gpu shares {os.getpid()}"
    config = kaas.Config(devices=(kaas.Device(kind),), slots=SLOTS, policy="fcfs")
    kaas.init(ray=False, name=name, config=config)
    try:
        yield
    finally:
        kaas.shutdown()


def functions_of(kind: str, models: list[str]) -> dict[str, tuple[kaas.Function, Any]]:
    """Return functions, and what to call of each, by name."""
    gemm = product(kind)
    found: dict[str, tuple[kaas.Function, Any]] = {"gemm": (gemm, gemm)}
    for name in models:
        import tvm_backend

        made = tvm_backend.compile(MODELS[name].graph(), batch_sizes=(1,), name=name)
        function = made.register()
        found[name] = function, Bound(function, MODELS[name].inputs())
    for _, called in found.values():
        called.call().result()
    return found


def rate(functions: list[tuple[kaas.Function, Any]], share: kaas.Share, seconds: float) -> float:
    """Return the requests a second of functions with this share each, two callers for each."""
    for function, _ in functions:
        kaas.set_share(function, share)
    callers = [(str(number), called, 2) for number, (_, called) in enumerate(functions)]
    counts = Callers(*callers).ended(seconds).counts
    for function, _ in functions:
        kaas.set_share(function, None)
    return counts.total() / seconds


def share_error(gemm: kaas.Function, seconds: float) -> float:
    """Return the worst error of a client's part of the requests."""
    worst = 0.0
    for parts in QUOTAS:
        clients = [(client, gemm.options(client=client), CALLERS) for client in ("left", "right")]
        for (client, _, _), part in zip(clients, parts, strict=True):
            kaas.set_share(client, kaas.Share(quota=(part, 1.0)))
        counts = Callers(*clients).ended(2 * seconds).counts
        for client in ("left", "right"):
            kaas.set_share(client, None)
        got = [counts[client] / counts.total() for client in ("left", "right")]
        worst = max(worst, *(abs(one / part - 1) for one, part in zip(got, parts, strict=True)))
    return worst


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--device", choices=tuple(SIDE), default="gpu")
    options.add_argument("--seconds", type=positive, default=2, help="of each measurement")
    options.add_argument("--models", nargs="*", default=["resnet50", "bert"], choices=sorted(MODELS))
    given = options.parse_args()
    if given.device == "gpu":
        try:
            executor_for(kaas.Device("gpu"))
        except DeviceUnavailable as error:
            sys.exit(f"gpu_shares needs a GPU: {error}")
    models = given.models if importlib.util.find_spec("tvm") else []
    with pool(given.device):
        functions = functions_of(given.device, models)
        detail = {
            f"{name}_per_s_{part:g}": rate([each], kaas.Share(part), given.seconds)
            for name, each in functions.items()
            for part in PARTS
        }
        worst = share_error(functions["gemm"][0], given.seconds)
        ratios = {}
        for pair in combinations(functions, 2):
            both = [functions[name] for name in pair]
            beside = rate(both, kaas.Share(0.5), given.seconds)
            ratios["_".join(pair)] = beside / rate(both, kaas.Share(1.0, (0.5, 1.0)), given.seconds)
    bars: dict[str, Bar] = {"share_error": (worst, "<=", 0.05)}
    if ratios:
        bars["beside_over_turns"] = (median(ratios.values()), ">=", 1.0)
    report(
        "gpu_shares", bars, detail | {f"beside_over_turns_{name}": each for name, each in ratios.items()}, given.json
    )


if __name__ == "__main__":
    main()
