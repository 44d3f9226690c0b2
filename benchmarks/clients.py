"""The cost of a request from another client than the last one's: arena and globals are reset.

Requests of one kernel come in turn from the same client and from another, on the first GPU or else on a software GPU.
Figures are medians.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter

import kaas
from benchmarks.report import arguments, report
from kaas.executor.device.device import gpu_count, open_device
from kaas.executor.executor import Executor, RunRequest

PTX = (Path(__file__).parent / "kernels" / "clients.ptx").read_text()
MORE = "".join(f".global .align 4 .u32 more{number} = {number};\n" for number in range(1, 8))
HIDDEN = ".visible .entry hides() {\n.global .u32 inside = 4;\nret;\n}\n"
"""A variable that cannot be found by name, so that the library is loaded again."""
TURNS = {"one variable": (PTX, 2000), "eight variables": (PTX + MORE, 2000), "loaded anew": (PTX + HIDDEN, 50)}
WARM_UP = 10

OUT = kaas.Buffer("out", 1, "int32")


def main() -> None:
    options = arguments(__doc__ or "")
    executor = Executor(open_device("gpu" if gpu_count() else "software", 0))
    bars, detail = {}, {"device": executor.device.info().name}
    for name, (text, turns) in TURNS.items():
        same_s, another_s = measure(executor, kaas.Library.from_ptx(text), turns)
        detail[f"{name}, us"] = f"same {same_s * 1e6:.1f}, another {another_s * 1e6:.1f}"
        if name == "one variable":
            bars["another_client_over_same"] = (another_s / same_s, "<=", 1.3)
    report("clients", bars, detail, options.json)
    executor.close()


def measure(executor: Executor, library: kaas.Library, turns: int) -> tuple[float, float]:
    """Return the seconds of a request of the last request's client, and of a request of another client."""
    task = kaas.KTask([kaas.Kernel(library, "count", 1, 1, [kaas.Out(OUT)])], [OUT])
    times: dict[str, list[float]] = {"same": [], "another": []}
    for turn in range(WARM_UP + turns):
        for client in ("a", "b"):
            for which in ("another", "same"):
                began = perf_counter()
                executor.run(RunRequest(task, {}, {}, client))
                if turn >= WARM_UP:
                    times[which].append(perf_counter() - began)
    return median(times["same"]), median(times["another"])


if __name__ == "__main__":
    main()
