"""`python -m benchmarks.models [--json]`: ResNet-50 through `kaas.invoke` over its kernels, and every model's figures.

The bar is the time from `remote` to the result, through Ray, over the time of the kernels one by one, each between two
events: 1.0 would be a service without costs. The two take turns, with the weights on the device. The bar is the median
of the turns' ratios, which other work on the machine disturbs least. Kernels that do not depend on each other may run
at once in the graph that `invoke` replays, but not one by one, so the detail also has the ratio to the time of the
graph alone.

Needs apache-tvm and onnx. Runs on the software GPU unless another device is chosen.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.models import MODELS, Model, relative_error, same_top1
from benchmarks.report import Bar, parser, positive, report

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # Ray reads it when it is imported

import ray

import kaas
from kaas.executor.plan.plan import arena_bytes

DEVICE = kaas.Device("software", 1 << 30)
RUN_LIMIT_S = 600
"""BERT-base takes half a minute on two cores."""
WARM_UP = 2
TOLERANCE = 1e-3
ENOUGH_S = 5
"""The time after which a model that has run twice does not run again."""


def check(model: Model, outputs: Mapping[str, Any], answers: Mapping[str, Any]) -> None:
    """Check a timed result: an error of at most a thousandth of the largest value, and the same largest element."""
    for name in model.outputs:
        error = relative_error(outputs[name], answers[name])
        if not error <= TOLERANCE or not same_top1(outputs[name], answers[name]):
            raise AssertionError(f"{model.name}: {name} is not PyTorch's: a relative error of {error:.2g}")


def invoked(model: Model, made: kaas.CompiledModel, rounds: int) -> dict[str, float]:
    """Return median seconds of a warm invocation, its graph alone and its kernels one by one, and the median ratios."""
    function = made.register()
    profiled = function.options(profile=True)
    inputs, answers = model.inputs(), model.answers()
    check(model, {model.outputs[0]: ray.get(kaas.invoke(function, inputs))}, answers)
    times: dict[str, list[float]] = {"invoke_s": [], "graph_s": [], "kernels_s": []}
    for turn in range(WARM_UP + rounds):
        kaas.stats(reset=True)
        began = perf_counter()
        ray.get(function.remote(**inputs))
        seconds = {"invoke_s": perf_counter() - began}
        seconds["graph_s"] = sum(stage.total_s for stage in kaas.stats(reset=True).stages if stage.stage == "kernels")
        ray.get(profiled.remote(**inputs))
        seconds["kernels_s"] = sum(kernel.total_s for kernel in kaas.stats().kernels)
        if turn >= WARM_UP:
            for what, value in seconds.items():
                times[what].append(value)
    medians = {what: median(values) for what, values in times.items()}
    for other in ("graph", "kernels"):
        pairs = zip(times["invoke_s"], times[f"{other}_s"], strict=True)
        medians[f"invoke_over_{other}"] = median(whole / part for whole, part in pairs)
    return medians


def figures(model: Model) -> dict[str, Any]:
    """Return one model's figures: its parts, and for each batch its time in this process and its error.

    The error is the distance from PyTorch's result. The pool must give the same result as this process.
    """
    began = perf_counter()
    made = model.compiled(model.batch_sizes)
    found: dict[str, Any] = {"compile_s": perf_counter() - began, "constant_bytes": made.constant_bytes}
    function = made.register()
    for batch, variant in zip(model.batch_sizes, made.variants, strict=True):
        inputs, answers = model.inputs(batch), model.answers(batch)
        times: list[float] = []
        outputs: Mapping[str, Any] = {}
        while len(times) < 2 or (len(times) < 4 and sum(times) < ENOUGH_S):
            began = perf_counter()
            outputs = made.run(inputs, device=DEVICE).outputs
            times.append(perf_counter() - began)
        check(model, outputs, answers)
        refs = kaas.invoke(function, inputs)
        through_pool = ray.get(list(refs) if isinstance(refs, tuple) else [refs])
        check(model, dict(zip(model.outputs, through_pool, strict=True)), answers)
        about = {
            "kernels": len({kernel.symbol for kernel in variant.task.kernels}),
            "launches": len(variant.task.kernels),
            "arena_bytes": arena_bytes(variant.task, variant.constants),
            "first_run_s": times[0],
            "run_s": median(times[1:]),
            "relative_error": max(relative_error(outputs[name], answers[name]) for name in model.outputs),
        }
        found |= {f"batch_{batch}_{what}": value for what, value in about.items()}
    return found


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    made = parser((__doc__ or "").partition("\n")[0])
    made.add_argument("names", nargs="*", help="print the figures of these models only", metavar="NAME")
    made.add_argument("--rounds", type=positive, default=15, help="number of turns of ResNet-50 through Ray")
    chosen = made.parse_args(argv)
    if unknown := [name for name in chosen.names if name not in MODELS]:
        made.error(f"no model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    return chosen


def main() -> int:
    chosen = options()
    network = MODELS["resnet50"]
    kaas.init(config=kaas.Config(devices=(DEVICE,), run_limit_s=RUN_LIMIT_S))
    try:
        times = invoked(network, network.compiled(network.batch_sizes), chosen.rounds)
        bars: dict[str, Bar] = {"invoke_over_kernels": (times.pop("invoke_over_kernels"), "<=", 1.05)}
        detail: dict[str, Any] = {f"resnet50_{what}": seconds for what, seconds in times.items()}
        for name in chosen.names or MODELS:
            found = figures(MODELS[name])
            detail |= {f"{name}_{what}": value for what, value in found.items()}
    finally:
        kaas.shutdown()
    report("models", bars, detail, chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
