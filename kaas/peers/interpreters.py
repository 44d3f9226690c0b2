"""Sources of Triton and numba-cuda: compiled for the software GPU, and in the interpreters that come with the two.

Both times contain the work around the kernel: of KaaS the copies of its buffers, of an interpreter the making of its
arrays and a file with its result, some milliseconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np

from kaas.errors import WrongAnswer
from kaas.executor.local import run_local
from kaas.peers.systems import PeerSystem
from kaas.peers.turns import latencies_s

SOURCES = {PeerSystem.TRITON: "triton_source", PeerSystem.NUMBA: "numba_source"}
"""Modules of `kaas.peers.sources`, each with the kTask of its kernel, its inputs, and a function that interprets it."""
VARIABLES = {PeerSystem.TRITON: ("TRITON_INTERPRET", "1"), PeerSystem.NUMBA: ("NUMBA_ENABLE_CUDASIM", "1")}
"""The variables that turn the interpreters on. They count when the packages are imported."""
CHILD = """
import sys
from importlib import import_module
import numpy as np
source = import_module("kaas.peers.sources." + sys.argv[1])
for line in sys.stdin:
    np.save(sys.argv[2], source.interpret())
    print("done", flush=True)
"""


def measure(peers: tuple[PeerSystem, ...], rounds: int, file: str) -> dict[str, dict[str, float]]:
    """Return for each language the median seconds of its kernel on the software GPU and in its interpreter.

    Args:
        peers: those that are installed.
        rounds: runs of each side.
        file: a path for the interpreters' results, which are compared.

    Raises:
        WrongAnswer: the two give different numbers.
    """
    return {peer.title: _measured(peer, rounds, file) for peer in SOURCES if peer in peers}


def _measured(peer: PeerSystem, rounds: int, file: str) -> dict[str, float]:
    from importlib import import_module

    source = import_module(f"kaas.peers.sources.{SOURCES[peer]}")
    task, given = source.build(), source.inputs()
    with _interpreter(peer, file) as interpret:
        sides: dict[str, Callable[[], Any]] = {"KaaS": lambda: run_local(task, given), "interpreter": interpret}
        interpret()
        (ours,) = run_local(task, given).values()
        if not np.allclose(ours, np.load(file), rtol=1e-4, atol=1e-6):
            raise WrongAnswer(f"{peer.title} and the software GPU give different numbers")
        seconds = latencies_s(sides, rounds, warm_up=0)
    found = {name: median(values) for name, values in seconds.items()}
    return {"ours_s": found["KaaS"], "theirs_s": found["interpreter"]}


@contextmanager
def _interpreter(peer: PeerSystem, file: str) -> Iterator[Callable[[], None]]:
    """Give a function that runs the kernel once in a process of its own."""
    name, value = VARIABLES[peer]
    command = [sys.executable, "-c", CHILD, SOURCES[peer], file]
    with subprocess.Popen(
        command, env={**os.environ, name: value}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        orders, replies = child.stdin, child.stdout

        def interpret() -> None:
            print("run", file=orders, flush=True)
            if replies.readline() != "done\n":
                raise ChildProcessError(f"{peer.title} ended with an error, which it wrote above")

        yield interpret
        orders.close()
