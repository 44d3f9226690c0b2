"""Shares of a device: what two clients get of their parts, what a neighbour costs, and how fast a share changes.

    python -m benchmarks.shares [--json] [--rounds N]

One software device with 128 multiprocessors, whose kernels take modelled time, in a pool of processes. Callers send the
next request when the last one is answered.

share_error: two clients with two callers each, whose kernels take the whole device for 5 ms, with leasts of 10 and 90,
30 and 70, 50 and 50 %. A client's part of the requests over its part as promised, less 1: the worst of all.

isolation_p99 (FaST-GShare, Figure 9): a function with 24 % of the SMs, and one caller, beside a function with 24 %
whose kernels take 50 ms and want all SMs, with four callers; over the same function alone. The median of the rounds, in
turns.

spatial_over_time: four functions whose kernels fill a quarter of the device, with a quarter of the SMs each, over the
same with a quarter of the time each.

resize_ms: from the call of `set_share` to the launch of the first request under it, while requests run: to the end of
that request, less its kernel's modelled time. The median of changes among five sizes.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep
from typing import Any

import msgspec

import kaas
from benchmarks.report import parser, positive, report
from softgpu import Model, Takes

SMS = 128
BLOCKS = {"whole": SMS, "wide": SMS, "a": 32, "b": 32, "c": 32, "d": 32}
TAKES_S = {"whole": 0.005, "wide": 0.05, "a": 0.005, "b": 0.005, "c": 0.005, "d": 0.005}
"""Seconds of each kernel on the whole device."""
CODE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry {name}(.param .u64 y)
{{ .reg .b64 %y; ld.param.u64 %y, [y]; st.global.u32 [%y], 1; ret; }}"""
QUOTAS = ((0.1, 0.9), (0.3, 0.7), (0.5, 0.5))
SIZES = (0.25, 0.5, 0.75, 0.375, 0.625)
MEASURED_S = 3.0
QUARTERS = "abcd"


def function(name: str) -> Any:
    """Return a registered function of one kernel."""
    y = kaas.Buffer("y", 1, "uint32")
    library = kaas.Library.from_ptx(CODE.format(name=name))
    return kaas.register(kaas.KTask([kaas.Kernel(library, name, BLOCKS[name], 1, [kaas.Out(y)])], [y], name=name))


@contextmanager
def pool(record: str | None = None) -> Iterator[dict[str, Any]]:
    """A pool with one device, as this process's session; gives its functions, each of which has run once."""
    device = kaas.Device(model=Model(sms=SMS, kernels={name: Takes(takes_s) for name, takes_s in TAKES_S.items()}))
    config = kaas.Config(devices=(device,), slots=4, policy="fcfs", record=record)
    kaas.init(ray=False, name=f"shares {os.getpid()}", config=config)
    try:
        functions = {name: function(name) for name in TAKES_S}
        for each in functions.values():
            each.call().result()
        yield functions
    finally:
        kaas.shutdown()


class Callers:
    """Callers of functions in threads, until `ended`. seconds: those of each request, by the caller's name."""

    def __init__(self, *callers: tuple[str, Any, int]) -> None:
        """callers: names, functions, and how many threads call each."""
        self.counts: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = {name: [] for name, _, _ in callers}
        self._ending = False
        self._failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._call, args=(name, each))
            for name, each, count in callers
            for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _call(self, name: str, each: Any) -> None:
        try:
            while not self._ending:
                began_s = perf_counter()
                each.call().result()
                self.seconds[name].append(perf_counter() - began_s)
                self.counts[name] += 1
        except BaseException as error:  # noqa: BLE001 - raised by `ended`, in the thread that measures
            self._failed.append(error)

    def ended(self, after_s: float) -> Callers:
        """Let them call for so long, and wait until all have ended."""
        sleep(after_s)
        self._ending = True
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]
        return self


def p99(seconds: Sequence[float]) -> float:
    """Return the 99th percentile, by nearest rank."""
    return sorted(seconds)[max(0, -(-99 * len(seconds) // 100) - 1)]


def share_errors(functions: dict[str, Any]) -> dict[str, float]:
    """Return, for each pair of leasts, the worst error of a client's part of the requests."""
    errors = {}
    for parts in QUOTAS:
        for client in ("left", "right"):
            kaas.set_share(client, None)
        callers = []
        for client, part in zip(("left", "right"), parts, strict=True):
            kaas.set_share(client, kaas.Share(quota=(part, 1.0)))
            callers.append((client, functions["whole"].options(client=client), 2))
        counts = Callers(*callers).ended(2 * MEASURED_S).counts
        got = [counts[client] / counts.total() for client in ("left", "right")]
        errors[f"{parts[0]:.0%}"] = max(abs(one / part - 1) for one, part in zip(got, parts, strict=True))
    for client in ("left", "right"):
        kaas.set_share(client, None)
    return errors


def neighbour(functions: dict[str, Any]) -> tuple[float, float]:
    """Return the p99 seconds of a function with a share alone, and beside one that wants the whole device."""
    for name in ("a", "wide"):
        kaas.set_share(functions[name], kaas.Share(0.24))
    alone = p99(Callers(("a", functions["a"], 1)).ended(MEASURED_S).seconds["a"])
    beside = p99(Callers(("a", functions["a"], 1), ("wide", functions["wide"], 4)).ended(MEASURED_S).seconds["a"])
    for name in ("a", "wide"):
        kaas.set_share(functions[name], None)
    return alone, beside


def rate(functions: dict[str, Any], share: kaas.Share) -> float:
    """Return the requests a second of four functions with this share each."""
    for name in QUARTERS:
        kaas.set_share(functions[name], share)
    counts = Callers(*((name, functions[name], 2) for name in QUARTERS)).ended(MEASURED_S).counts
    for name in QUARTERS:
        kaas.set_share(functions[name], None)
    return counts.total() / MEASURED_S


def resizes(functions: dict[str, Any], record: Path, times: int) -> list[float]:
    """Return the seconds from each change of a share to the launch of the first request under it."""
    callers = Callers(("whole", functions["whole"], 2), ("a", functions["a"], 2))
    changes = []
    for number in range(times):
        sleep(0.05)
        part = SIZES[number % len(SIZES)]
        changes.append((monotonic(), round(part * SMS)))
        kaas.set_share(functions["whole"], kaas.Share(part))
    sleep(0.2)
    callers.ended(0.0)
    lines = [msgspec.json.decode(line) for line in record.read_bytes().splitlines()]
    events = [line for line in lines if "event" in line]
    found = []
    for changed_s, sms in changes:
        later = (line for line in events if line["event"][1]["time_s"] >= changed_s)
        request = next(
            value["request"]
            for line in later
            for kind, value in line["decisions"]
            if kind == "Dispatch" and value.get("sms") == sms and value.get("share")
        )
        ended_s = next(
            value["time_s"]
            for kind, value in (line["event"] for line in events)
            if kind == "RequestDone" and value["request"] == request
        )
        found.append(ended_s - changed_s - TAKES_S["whole"] * -(-SMS // sms))
    return found


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--rounds", type=positive, default=5, help="of the neighbour, in turns")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record"
        with pool(str(record)) as functions:
            errors = share_errors(functions)
            rounds = [neighbour(functions) for _ in range(given.rounds)]
            spatial, in_time = rate(functions, kaas.Share(0.25)), rate(functions, kaas.Share(1.0, (0.25, 1.0)))
            changes = resizes(functions, record, 40)
    bars = {
        "share_error": (max(errors.values()), "<=", 0.05),
        "isolation_p99": (median(beside / alone for alone, beside in rounds), "<=", 1.1),
        "spatial_over_time": (spatial / in_time, ">=", 2.5),
        "resize_ms": (median(changes) * 1e3, "<=", 20.0),
    }
    detail = {
        **{f"share_error_{name}": error for name, error in errors.items()},
        "alone_p99_ms": median(alone for alone, _ in rounds) * 1e3,
        "beside_p99_ms": median(beside for _, beside in rounds) * 1e3,
        "spatial_per_s": spatial,
        "time_per_s": in_time,
        "slowest_resize_ms": max(changes) * 1e3,
    }
    report("shares", bars, detail, given.json)


if __name__ == "__main__":
    main()
