"""The tables of docs/security.md, made from the figures of a result: what each level costs, and what fences cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

POOLS = {
    "throughput of four clients, requests/s": "rate_5ms",
    "the same, kernels of 0.2 ms": "rate_200us",
    "the same, kernels of 1 ms": "rate_1ms",
    "the same, kernels of 20 ms": "rate_20ms",
    "throughput of five clients where a device has four `client_executors`, requests/s": "crowded_rate",
    "latency of one client, ms": "latency_ms",
    "start of an executor to its first answer: the first client of a new pool, ms": "start_ms",
    "first answer to a new client that finds no spare executor ready: one came just before, ms": "next_ms",
    "first answer to a new client that finds a spare executor ready, ms": "first_ms",
    "memory of all processes of the pool with four clients, MB": "processes_mb",
    "one model of 64 MB for four clients: latency of the last, ms": "model_latency_ms",
    "first answer to a client after the first, which finds a spare executor ready, ms": "model_first_ms",
    "memory of all processes of the pool then, MB": "model_processes_mb",
}
"""The figures of a pool, by the texts of their rows."""
FENCES = {
    "ResNet-50": "resnet50",
    "GEMM": "gemm",
    "nearest neighbours": "nearest_neighbours",
    "copy": "copy",
    "transpose, by tiles in shared memory": "transpose",
    "gather and scatter, places at random": "gather_scatter",
    "histogram by global atomics": "histogram",
    "sum by trees in shared memory": "shared_sum",
    "stencil of five points": "stencil",
    "scan in shared memory": "scan",
    "product of matrices, one thread an element, no tiles": "naive_matmul",
    "sparse matrix times vector": "sparse_product",
    "sort in local memory": "local_sort",
    "graph of 1,000 kernels of one warp": "tiny",
    "request with a temporary of 16 MB, eight clients in turns": "temporaries_in_turns",
    "request with a new object of 4 MB": "new_objects",
    "request with an object of 1 MB that another client uses too": "objects_of_another",
    "first request of a client": "first_requests",
}
"""The names of kernels and requests, by the texts of their rows."""


def tables(detail: Mapping[str, Any]) -> str:
    """Return both tables. detail: of a result; figures that it lacks are dashes."""
    levels = {name.split("_")[1]: None for name in detail if name.startswith("pool_")}
    rows = [_row("one device, kernels of 5 ms", [f"`{level}`" for level in levels]), _row("---", ["---"] * len(levels))]
    for text, figure in POOLS.items():
        rows.append(_row(text, _shown(detail, [f"pool_{level}_{figure}" for level in levels])))
    columns = ("none_ms", "fence_ms", "fence_over_none")
    rows += [
        "",
        _row("time of kernels, or of a whole request", ["`none`, ms", "`fence`, ms", "ratio"]),
        _row("---", ["---"] * len(columns)),
    ]
    for text, name in FENCES.items():
        rows.append(_row(text, _shown(detail, [f"{name}_{column}" for column in columns])))
    return "\n".join(rows)


def _row(text: str, cells: Sequence[str]) -> str:
    return f"| {text} | {' | '.join(cells)} |"


def _shown(detail: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the figures with three digits, and without an exponent."""
    return ["–" if name not in detail else f"{float(f'{detail[name]:.3g}'):g}" for name in names]
