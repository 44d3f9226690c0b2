"""Sources of Triton and numba-cuda: compiled for the software GPU, and in the interpreters that come with the two.

Both times contain the work around the kernel: of KaaS the copies of its buffers, of an interpreter the making of its
arrays and a file with its result, some milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Any

import numpy as np

from kaas.errors import WrongAnswer
from kaas.executor.local import run_local
from kaas.peers.peer_process import PeerProcess
from kaas.peers.systems import PeerSystem, part_of
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
        PeerFailed
        WrongAnswer: the two give different numbers.
    """
    return {peer.title: _measured(peer, rounds, file) for peer in SOURCES if peer in peers}


def _measured(peer: PeerSystem, rounds: int, file: str) -> dict[str, float]:
    with part_of(peer):
        source = import_module(f"kaas.peers.sources.{SOURCES[peer]}")
    task, given = source.build(), source.inputs()
    with PeerProcess(CHILD, (SOURCES[peer], file), dict([VARIABLES[peer]])) as child:

        def interpret() -> None:
            child.order("run")
            child.expect("done")

        sides: dict[str, Callable[[], Any]] = {"KaaS": lambda: run_local(task, given), "interpreter": interpret}
        with part_of(peer):
            interpret()
        (ours,) = run_local(task, given).values()
        if not np.allclose(ours, np.load(file), rtol=1e-4, atol=1e-6):
            raise WrongAnswer(f"{peer.title} and the software GPU give different numbers")
        seconds = latencies_s(sides, rounds, 0, {"interpreter": peer})
        with part_of(peer):
            child.end()
    found = {name: median(values) for name, values in seconds.items()}
    return {"ours_s": found["KaaS"], "theirs_s": found["interpreter"]}
