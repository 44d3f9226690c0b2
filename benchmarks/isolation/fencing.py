"""Two executors, one with fences and one without, which take turns with the same requests. Outputs are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor, RunRequest, RunResult

LEVELS = ("none", "fence")
Seconds = dict[str, list[float]]
"""Of each request, by level."""
Measure = Callable[[Executor, RunRequest], tuple[RunResult, float]]


def kernels_s(executor: Executor, request: RunRequest) -> tuple[RunResult, float]:
    """Run a request; return its result, and the device seconds of its kernels."""
    result = executor.run(request)
    return result, result.stats.device_s


def request_s(executor: Executor, request: RunRequest) -> tuple[RunResult, float]:
    """Run a request; return its result, and the seconds that it takes."""
    began_s = perf_counter()
    result = executor.run(request)
    return result, perf_counter() - began_s


def in_turns(kind: str, requests: Iterable[RunRequest], warm_up: int, measure: Measure, **options: Any) -> Seconds:
    """Return what requests take on two new executors of this kind of device, without the first ones.

    options: of `Executor`.
    """
    taken: Seconds = {level: [] for level in LEVELS}
    with ExitStack() as stack:
        executors = {
            level: stack.enter_context(
                closing(Executor(open_device(kind, ordinal), isolation=level, **options))  # type: ignore[arg-type]
            )
            for level, ordinal in zip(LEVELS, (0, 1) if kind == "software" else (0, 0), strict=True)
        }
        for request in requests:
            results = {}
            for level, executor in executors.items():
                results[level], seconds = measure(executor, request)
                taken[level].append(seconds)
            for name, output in results["none"].outputs.items():
                np.testing.assert_array_equal(results["fence"].outputs[name], output)
    return {level: each[warm_up:] for level, each in taken.items()}


def figures(name: str, taken: Seconds) -> Iterator[tuple[str, float]]:
    """Yield the medians in ms, and that of the ratios, with fences over without, each with its name."""
    yield from ((f"{name}_{level}_ms", 1e3 * median(each)) for level, each in taken.items())
    ratios = [with_ / without for without, with_ in zip(taken["none"], taken["fence"], strict=True)]
    yield f"{name}_fence_over_none", median(ratios)
