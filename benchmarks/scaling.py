"""The time of a scaling decision, and the devices that sharing in space saves.

    python -m benchmarks.scaling [--json] [--functions N] [--devices N] [--decisions N]

scale_decision_us: 1,000 functions with profiles like those of FaST-GShare's Figure 8 take four fifths of 100 devices.
Then one function's load after another moves, up or down, by up to a half. The median of the decisions that change
something counts. The detail has those that change nothing, and the same with devices that are full (`full_`), where
decisions search for room in vain. Times are of the processor. Chance comes from a seed.

gpus_over_time_sharing: the eight instances of the paper's Figure 11, packed as they are, over the same with all of the
SMs each, which is time sharing. Devices are those of the paper, with 80 SMs; the detail has the figures of others,
whose least partitions are larger.

slo_violations: the paper's Figure 12 in the simulator (`slo_trace`). A load on ResNet, promised 69 ms, rises from 10 to
150 requests a second, jumps to 450, and falls. The part of the requests that takes longer counts, the first ones
included, by which the function measures itself: the worse of the function alone on four devices, and beside a client
that floods them. In the detail are the same of a function that refuses what would be late.
"""

from __future__ import annotations

from random import Random
from statistics import median, quantiles
from time import process_time
from typing import Any

from benchmarks.report import parser, positive, report
from benchmarks.slo_trace import violations
from kaas.scheduling.sharing.packing import DevicePacking
from kaas.scheduling.sharing.rectangles import DeviceExtent
from kaas.scheduling.sharing.scaler import Rescaling, Scaler
from kaas.scheduling.sharing.scaling import Choices, Configuration

SMS = (0.06, 0.12, 0.24, 0.5, 0.6, 0.8, 1.0)
QUOTAS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""The paper's points of a profile."""
FIGURE_11 = [(0.12, 0.4)] * 4 + [(0.24, 0.4)] * 2 + [(0.5, 0.6)] * 2
"""Four of ResNet, two of RNNT, two of BERT: SMs and time."""
EXTENTS = {
    "units": DeviceExtent(),
    "v100": DeviceExtent(80, 2),
    "h200_by_8": DeviceExtent(132, 8),
    "h200_by_2": DeviceExtent(132, 2),
}
SEED = 4
WANTED = {"": 0.5, "full_": 0.8}
"""The part of the devices that the functions' mean load takes, all at their best configurations, without headroom."""
TRACES = {"alone_": (False, True), "flooded_": (True, True), "refusing_": (True, False)}
"""Whether another client floods the devices, and whether late requests run all the same."""
SECONDS = 1.0
"""Between two decisions."""


def profile(saturation: float, rate_per_s: float) -> list[Configuration]:
    """Return the profile of a function whose throughput saturates at a fraction of the SMs, as those of Figure 8.

    rate_per_s: the throughput of a whole device.
    """
    whole = 1 - 2 ** (-1 / saturation)
    return [
        Configuration(sms, quota, quota * rate_per_s * (1 - 2 ** (-sms / saturation)) / whole, 0.02 / quota / sms**0.5)
        for sms in SMS
        for quota in QUOTAS
    ]


def decisions(functions: int, devices: int, count: int, wanted: float) -> dict[str, Any]:
    """Return the microseconds of decisions, and what they were made among."""
    random = Random(SEED)
    scaler = Scaler(dict.fromkeys(range(devices), EXTENTS["v100"]), hold_s=60.0)
    loads: dict[str, float] = {}
    for number in range(functions):
        choices = Choices(profile(random.choice(SMS[:4]), random.uniform(50, 500)))
        scaler.add_function(f"f{number}", choices)
        loads[f"f{number}"] = choices.best.efficiency * wanted * devices / functions * random.uniform(0.1, 1.9)
    began = process_time()
    for name, load_per_s in loads.items():
        scaler.decide(name, load_per_s, 0.0)
    built_s = process_time() - began
    changed: list[float] = []
    unchanged: list[float] = []
    names = [*loads]
    for number in range(count):
        name = random.choice(names)
        load_per_s = loads[name] * random.uniform(0.5, 1.5)
        began = process_time()
        done = scaler.decide(name, load_per_s, number * SECONDS)
        (changed if changes(done) else unchanged).append((process_time() - began) * 1e6)
    grants = [*scaler.grants()]
    return {
        "changed_us": median(changed),
        "changed_p99_us": quantiles(changed, n=100)[-1],
        "unchanged_us": median(unchanged),
        "decisions_that_change": len(changed),
        "decisions_that_do_not": len(unchanged),
        "first_decisions_us": built_s / functions * 1e6,
        "instances": len(grants),
        "part_in_use": sum(grant.spot.sms * grant.spot.quota for grant in grants) / devices,
        "functions_without_room": len(scaler.missing_per_s()),
    }


def changes(done: Rescaling) -> bool:
    """Return whether a decision changes anything."""
    return bool(done.added or done.removed or done.resized)


def devices_used(shares: list[tuple[float, float]], extent: DeviceExtent) -> int:
    """Return the number of devices that shares take, those of largest area placed first."""
    packing = DevicePacking(dict.fromkeys(range(len(shares)), extent))
    packing.place_all(dict(enumerate(shares)))
    return packing.used()


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--functions", type=positive, default=1000)
    options.add_argument("--devices", type=positive, default=100)
    options.add_argument("--decisions", type=positive, default=10_000)
    chosen = options.parse_args()
    detail: dict[str, Any] = {}
    for prefix, wanted in WANTED.items():
        measured = decisions(chosen.functions, chosen.devices, chosen.decisions, wanted)
        detail |= {prefix + name: value for name, value in measured.items()}
    over_time: dict[str, float] = {}
    for name, extent in EXTENTS.items():
        shared, timed = (devices_used(shares, extent) for shares in (FIGURE_11, [(1.0, q) for _, q in FIGURE_11]))
        over_time[name] = shared / timed
    for prefix, how in TRACES.items():
        detail |= {prefix + name: value for name, value in violations(*how).items()}
    bars = {
        "scale_decision_us": (detail["changed_us"], "<=", 200),
        "gpus_over_time_sharing": (over_time["v100"], "<=", 0.25),
        "slo_violations": (max(detail["alone_late"], detail["flooded_late"]), "<=", 0.01),
    }
    detail |= {f"gpus_over_time_sharing_{name}": ratio for name, ratio in over_time.items()}
    report("scaling", bars, detail, chosen.json)


if __name__ == "__main__":
    main()
