"""The load generator itself: its share of a processor, and the error of its latencies.

    python -m benchmarks.generator [--json]

`kaas.bench` sends 1,000 requests a second to a stand-in for a service, which replies to each after LATENCY_S and does
nothing else: a thread of this process that waits. own_share is the processor time of the generator over the time of the
run: that of the thread that sends and takes in, and that of the ends of requests, which run in the stand-in's thread.
latency_error is the difference of the median latency that the generator reports from the stand-in's own median, over
the latter. Each is the median of ROUNDS runs, with Poisson arrivals and with constant ones.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from statistics import median
from time import perf_counter, sleep, thread_time
from typing import Any

from benchmarks.report import parser, report
from kaas.bench.arrivals import constant, poisson
from kaas.bench.load import Load
from kaas.bench.measure import measure

RATE_PER_S = 1000.0
LATENCY_S = 0.005
WINDOW_S = 1.0
ROUNDS = 5
ARRIVALS = {"constant": constant, "poisson": poisson}


class StandIn:
    """A service whose latency is known.

    Fields:
        latencies_s: from the sending of each request to the moment before its future ends. ending_s: processor time of
            the futures' ends.
    """

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.ending_s = 0.0
        self._sent: SimpleQueue[tuple[float, Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def send(self, _: int) -> Future[Any]:
        future: Future[Any] = Future()
        self._sent.put((perf_counter(), future))
        return future

    def close(self) -> None:
        self._sent.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (request := self._sent.get()) is not None:
            sent_s, future = request
            left_s = sent_s + LATENCY_S - perf_counter()
            if left_s > 0:
                sleep(left_s)
            self.latencies_s.append(perf_counter() - sent_s)
            began_s = thread_time()
            future.set_result(None)
            self.ending_s += thread_time() - began_s


def run(arrivals: str) -> dict[str, float]:
    """Return the figures of one run."""
    service = StandIn()
    load = Load(service.send)
    try:
        began_s, own_s = perf_counter(), -thread_time()
        loop = load.opened(ARRIVALS[arrivals](RATE_PER_S))
        found = measure(load, loop, open_loop=True, window_s=WINDOW_S, limit_s=10 * WINDOW_S)
        own_s += thread_time() + service.ending_s
        took_s = perf_counter() - began_s
    finally:
        service.close()
    known_s = median(service.latencies_s)
    return {
        "own_share": own_s / took_s,
        "latency_error": abs(found.latencies.percentiles["p50"] - known_s) / known_s,
        "late_us": found.late_s * 1e6,
        "rate_per_s": found.rate_per_s or 0.0,
        "seconds": took_s,
    }


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = options.parse_args()
    detail: dict[str, Any] = {"rate_per_s": RATE_PER_S, "latency_ms": LATENCY_S * 1e3, "rounds": chosen.rounds}
    worst = {"own_share": 0.0, "latency_error": 0.0}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in ARRIVALS}
    for _ in range(chosen.rounds):
        for name, found in rounds.items():
            found.append(run(name))
    for name, found in rounds.items():
        figures = {figure: median(each[figure] for each in found) for figure in found[0]}
        detail |= {f"{name}_{figure}": round(value, 5) for figure, value in figures.items()}
        worst = {bar: max(value, figures[bar]) for bar, value in worst.items()}
    bars = {"own_share": (worst["own_share"], "<=", 0.1), "latency_error": (worst["latency_error"], "<=", 0.05)}
    report("generator", bars, detail, chosen.json)


if __name__ == "__main__":
    main()
