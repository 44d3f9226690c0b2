"""The shares of a device's time that two clients get by their weights: one client's requests copy, the other's compute.

    python -m benchmarks.fairness [--json]

One software device with modelled time runs under `cfs_affinity`. A request of the first client copies 8 MB in and out,
10 ms each way; a request of the second has a kernel of 5 ms. Both always have requests waiting. A share is the time for
which a client's requests had the device, over that of both; share_error is its largest distance from the client's part
of the weights, for weights 1:1 and 2:1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

import kaas
import softgpu
from benchmarks.report import parser, report
from benchmarks.tenants import X, check, copier, holder, pool

COPIED_BYTES, COPY_BYTES_PER_S, KERNEL_S = 8 << 20, 8e8, 5e-3
DEVICE = kaas.Device(
    "software",
    128 << 20,
    model=softgpu.Model(copy_bytes_per_s=COPY_BYTES_PER_S, kernels={"step": softgpu.Takes(KERNEL_S)}),
)
COPIES, COMPUTES = "copies", "computes"
WEIGHTS = {"equal": {COPIES: 1.0, COMPUTES: 1.0}, "double": {COPIES: 2.0, COMPUTES: 1.0}}
OUTSTANDING = 3
"""The number of requests of each client at a time."""
SECONDS = 4.0


def measure(weights: Mapping[str, float], policy: str = "cfs_affinity", seconds: float = SECONDS) -> dict[str, float]:
    """Return the seconds for which each client's requests had the device."""
    clients = {name: kaas.ClientSettings(weight=weight) for name, weight in weights.items()}
    with pool("fairness", [DEVICE], policy, clients=clients):
        data = np.ones(COPIED_BYTES // 4, np.float32)
        copy, compute = kaas.register(copier(COPIED_BYTES), {}), holder(4096, 1.0)
        asks: dict[str, Callable[[str], None]] = {
            COPIES: lambda client: _zero(copy.options(client=client).call(x=data).result()),
            COMPUTES: lambda client: check(compute.options(client=client).call(x=X).result(), 1.0),
        }
        for ask in asks.values():
            ask("first")  # the client that loads the code is charged for it
        with _asking(asks):
            threading.Event().wait(seconds / 4)  # until both have requests waiting
            kaas.stats(reset=True)
            threading.Event().wait(seconds)
            stats = kaas.stats()
        return {name: sum(row.total_s for row in stats.stages if (row.client, row.stage) == (name, "total"))
                for name in weights}  # fmt: skip


@contextmanager
def _asking(asks: Mapping[str, Callable[[str], None]]) -> Iterator[None]:
    """Send each client's requests in a closed loop, from several threads."""
    over = threading.Event()
    failed: list[BaseException] = []

    def client(name: str) -> None:
        try:
            while not over.is_set():
                asks[name](name)
        except BaseException as error:  # noqa: BLE001 - raised again by the reader
            failed.append(error)

    threads = [threading.Thread(target=client, args=(name,)) for name in asks for _ in range(OUTSTANDING)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]


def _zero(y: np.ndarray[Any, Any]) -> None:
    if y.any():
        raise SystemExit("x - x is not 0: this measured something else")


def errors(weights: Mapping[str, float], seconds: Mapping[str, float]) -> dict[str, float]:
    """Return each client's share of the time, less its part of the weights."""
    whole_s, whole = sum(seconds.values()), sum(weights.values())
    return {name: seconds[name] / whole_s - weight / whole for name, weight in weights.items()}


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "").parse_args()
    detail: dict[str, Any] = {"copied_mb_each_way": COPIED_BYTES >> 20, "kernel_ms": KERNEL_S * 1e3}
    worst = 0.0
    for name, weights in WEIGHTS.items():
        seconds = measure(weights)
        off = errors(weights, seconds)
        worst = max(worst, *map(abs, off.values()))
        detail |= {f"{name}_{client}_s": round(each, 4) for client, each in seconds.items()}
        detail |= {f"{name}_{client}_share_off": round(each, 4) for client, each in off.items()}
    report("fairness", {"share_error": (worst, "<=", 0.1)}, detail, options.json)


if __name__ == "__main__":
    main()
