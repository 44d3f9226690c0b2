"""A program outside the cluster that sends requests to a server: `benchmarks.soak` starts several, and kills some.

    python -m benchmarks.remote_load ADDRESS KEYS NAME RATE FIRST SEED

The program sends requests in an open loop, RATE a second, each with an idempotency key, and every tenth twice. It
prints a line of JSON before it sends a request and when a reply arrives. Its standard input has the numbers of the last
program's requests without a reply, one a line, then an empty line; the program ends when its input closes.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

import kaas

PTX = Path(__file__).parent / "kernels" / "launch.ptx"
N = 256
"""The number of elements of an input: each is the number of its request."""
TWICE_EVERY = 10
FUNCTION = "step"


def task() -> kaas.KTask:
    """Return the kTask of y = x * 0.5 + w."""
    x, w, y = (kaas.Buffer(name, N, "float32") for name in "xwy")
    args: list[Any] = [kaas.In(x), kaas.In(w), kaas.Out(y), kaas.i32(N), kaas.i32(1)]
    return kaas.KTask([kaas.Kernel(kaas.Library.from_file(PTX), "step", 1, N, args)], [y])


def expected(number: int) -> np.float32:
    return np.float32(number) * np.float32(0.5) + np.float32(1)


class Load:
    def __init__(self, client: kaas.Client, name: str) -> None:
        self._client, self._name = client, name
        self._function = client.register(task(), {"w": np.ones(N, np.float32)}, name=FUNCTION)
        self._saying = threading.Lock()
        self._open = 0
        self._silence = threading.Condition()

    def send(self, number: int) -> None:
        self._say({"sent": number})
        for _ in range(1 if number % TWICE_EVERY else 2):
            with self._silence:
                self._open += 1
            began_s = monotonic()
            x = np.full(N, number, np.float32)
            future = self._client.call(self._function, {"x": x}, key=f"{self._name}-{number}")
            future.add_done_callback(partial(self._answered, number, began_s))

    def _answered(self, number: int, began_s: float, future: kaas.Future) -> None:
        error = future.exception()
        if error is None:
            outcome = "right" if (future.result() == expected(number)).all() else "wrong"
        else:
            outcome = type(error).__name__ if isinstance(error, kaas.KaasError) else "wrong"
        self._say({"answered": number, "outcome": outcome, "s": monotonic() - began_s})
        with self._silence:
            self._open -= 1
            self._silence.notify()

    def _say(self, line: dict[str, Any]) -> None:
        with self._saying:
            print(json.dumps(line), flush=True)

    def end(self, timeout_s: float) -> None:
        with self._silence:
            self._silence.wait_for(lambda: not self._open, timeout_s)


def wait_for_the_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def main() -> None:
    address, keys, name, rate, first, seed = sys.argv[1:]
    chance = random.Random(seed)
    ended = threading.Event()
    with kaas.Client(address, keys=keys) as client:
        load = Load(client, name)
        for line in iter(sys.stdin.readline, "\n"):
            load.send(int(line))
        threading.Thread(target=wait_for_the_end, args=(ended,), daemon=True).start()
        number, due_s = int(first), monotonic()
        while not ended.wait(max(due_s - monotonic(), 0)):
            load.send(number)
            number += 1
            due_s += chance.expovariate(float(rate))
        load.end(90.0)


if __name__ == "__main__":
    main()
