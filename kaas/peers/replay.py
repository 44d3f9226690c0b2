"""A graph as data: 1,000 kernels are saved, loaded again, and replayed.

Each kernel adds a vector of 1 KB to the last kernel's result. KaaS has them as a kTask in JSON; IREE as a module of
1,000 dispatches, which barriers keep apart.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from kaas.errors import WrongAnswer
from kaas.executor.local import executor_for, run_local
from kaas.ktask.arguments import Buffer, In, Out
from kaas.ktask.graph import KTask
from kaas.ktask.library import Kernel, Library
from kaas.peers.systems import PeerSystem, part_of
from kaas.peers.tenancy import PTX
from kaas.peers.turns import latencies_s

KERNELS = 1000
ELEMENTS = 256
PEERS = {"IREE": PeerSystem.IREE}
"""The systems of the sides that are not KaaS's."""


class Saved(NamedTuple):
    """A graph in a file: the seconds that saving took, the file's size, and a function that loads the graph.

    `load` returns a function that replays the graph.
    """

    save_s: float
    nbytes: int
    load: Callable[[], Callable[[], Any]]


def measure(peers: tuple[PeerSystem, ...], rounds: int) -> dict[str, dict[str, float]]:
    """Return for each side the seconds to save and to load the graph, and those of a kernel in a replay.

    Raises:
        PeerFailed
        WrongAnswer: KaaS's replay gives other numbers than NumPy.
    """
    with TemporaryDirectory() as folder:
        saved = {"KaaS": _ktask(Path(folder))}
        if PeerSystem.IREE in peers:
            with part_of(PeerSystem.IREE):
                saved["IREE"] = _iree(Path(folder))
        loaded, load_s = {}, {}
        executor_for(None)  # KaaS' process has its device already
        for name, each in saved.items():
            with part_of(PEERS.get(name, PeerSystem.KAAS)):
                began = perf_counter()
                loaded[name] = each.load()
                _check(name, loaded[name]())  # loading ends with the first answer
                load_s[name] = perf_counter() - began
        seconds = latencies_s(loaded, rounds, peers=PEERS)
    return {
        name: {
            "save_s": each.save_s,
            "file_kb": each.nbytes / 1e3,
            "load_s": load_s[name],
            "kernel_s": median(seconds[name]) / KERNELS,
        }
        for name, each in saved.items()
    }


def _check(name: str, answer: Any) -> None:
    if not np.array_equal(answer, np.full(ELEMENTS, KERNELS, np.float32)):
        raise WrongAnswer(f"{name}: {KERNELS} additions of 1 give {answer[0]}")


def _given() -> tuple[Any, Any]:
    return np.zeros(ELEMENTS, np.float32), np.ones(ELEMENTS, np.float32)


def chain() -> KTask:
    """Return the kTask: inputs "x0" and "w", output "x1000"."""
    library, w = Library.from_ptx(PTX), Buffer("w", ELEMENTS, "float32")
    vectors = [Buffer(f"x{step}", ELEMENTS, "float32") for step in range(KERNELS + 1)]
    return KTask([Kernel(library, "add", 1, 256, [In(x), In(w), Out(y)]) for x, y in pairwise(vectors)], [vectors[-1]])


def _ktask(folder: Path) -> Saved:
    task, file = chain(), folder / "chain.json"
    began = perf_counter()
    file.write_text(task.to_json())
    save_s = perf_counter() - began

    def load() -> Callable[[], Any]:
        loaded = KTask.from_json(file.read_text())
        x, w = _given()
        return lambda: run_local(loaded, {"x0": x, "w": w})[f"x{KERNELS}"]

    return Saved(save_s, file.stat().st_size, load)


def module() -> str:
    """Return IREE's module in MLIR."""
    vector = f"tensor<{ELEMENTS}xf32>"
    lines = [f"func.func @run(%x0: {vector}, %w: {vector}) -> {vector} {{"]
    for step in range(KERNELS):
        lines.append(f"  %s{step} = arith.addf %x{step}, %w : {vector}")
        lines.append(f"  %x{step + 1} = util.optimization_barrier %s{step} : {vector}")
    return "\n".join([*lines, f"  return %x{KERNELS} : {vector}", "}"])


def _iree(folder: Path) -> Saved:
    compiler: Any = import_module("iree.compiler")
    runtime: Any = import_module("iree.runtime")
    file, began = folder / "chain.vmfb", perf_counter()
    built = compiler.compile_str(module(), target_backends=["llvm-cpu"], extra_args=["--iree-llvmcpu-target-cpu=host"])
    file.write_bytes(built)
    save_s = perf_counter() - began

    def load() -> Callable[[], Any]:
        config = runtime.Config("local-sync")
        context = runtime.SystemContext(config=config)
        context.add_vm_module(runtime.VmModule.mmap(config.vm_instance, str(file)))
        run, (x, w) = context.modules.module["run"], _given()
        return lambda: run(x, w).to_host()

    return Saved(save_s, file.stat().st_size, load)
