"""A cold start: a new process, from its start until it can answer, and until its first answer has come.

ONNX Runtime's process can answer once its session is made. KaaS stands here twice: in the process itself, with the
device open and the file of the compiled model read; and with a pool of its own, where the model is registered.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from kaas.errors import CompileFailed, WrongAnswer
from kaas.peers.models import MODELS
from kaas.peers.systems import PeerSystem

READ = "import sys\nimport numpy as np\n"
READY = 'print("ready", flush=True)\nx = np.load(sys.argv[2])\n'
ANSWER = 'print("answer", flush=True)\nnp.save(sys.argv[3], answer)\n'
LOCAL = f"""{READ}import kaas
from kaas.executor.local import executor_for
model = kaas.CompiledModel.load(sys.argv[1])
executor_for(None)
{READY}answer = model.run_local(x)
{ANSWER}"""
POOL = f"""{READ}import kaas
from secrets import token_hex
kaas.init(ray=False, name="coldstart-" + token_hex(4))
function = kaas.CompiledModel.load(sys.argv[1]).register()
{READY}answer = function.call(x=x).result()
{ANSWER}kaas.shutdown()
"""
SESSION = f"""{READ}import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
{READY}(answer,) = session.run(None, {{"x": x}})
{ANSWER}"""
SIDES = {
    "KaaS, in the process": (PeerSystem.KAAS, ".kaas", LOCAL),
    "KaaS, a pool": (PeerSystem.KAAS, ".kaas", POOL),
    "ONNX Runtime": (PeerSystem.ONNXRUNTIME, ".onnx", SESSION),
}
RTOL = 1e-3


def measure(
    peers: tuple[PeerSystem, ...], names: tuple[str, ...], rounds: int, folder: Path
) -> dict[str, dict[str, float]]:
    """Return the median seconds to ready and to the first answer by model, side and state of the page cache.

    Args:
        peers: those that are installed.
        names: of MODELS.
        rounds: starts of each side, with the file in the page cache, and dropped from it.
        folder: of the models' files, which a later measurement uses again.

    Raises:
        CompileFailed: no compiler is installed, or the compiler failed; its words went to stderr.
        WrongAnswer: two sides give different numbers.
    """
    found: dict[str, dict[str, float]] = {}
    for name in names:
        files = _files(name, folder)
        sides = {side: each for side, each in SIDES.items() if each[0] in peers}
        times: dict[str, list[tuple[float, float]]] = {}
        for cached in (True, False):
            for turn in range(rounds + 1):  # the first one fills caches, of compiled code too
                for side, (_, suffix, program) in sides.items():
                    if not cached:
                        _forget(folder / f"{name}{suffix}")
                    seconds = _started(program, folder / f"{name}{suffix}", files, folder / f"{name}-{side}.npy")
                    if turn:
                        times.setdefault(f"{name}, {side}, {'warm' if cached else 'dropped'}", []).append(seconds)
        _same([np.load(folder / f"{name}-{side}.npy") for side in sides], name)
        for title, each in times.items():
            ready, answer = zip(*each, strict=True)
            found[title] = {"ready_s": median(ready), "answer_s": median(answer)}
    return found


def _same(answers: list[Any], name: str) -> None:
    scale = float(np.abs(answers[0]).max())
    if any(not np.allclose(each, answers[0], rtol=RTOL, atol=RTOL * scale) for each in answers):
        raise WrongAnswer(f"{name}: the sides give different numbers")


def _files(name: str, folder: Path) -> Path:
    """Make the model's files that are missing. Return the path of its input."""
    import onnx

    make, shape = MODELS[name]
    given, graph, compiled = (folder / f"{name}{suffix}" for suffix in (".npy", ".onnx", ".kaas"))
    if not graph.exists():
        onnx.save(make(), str(graph))
    if not given.exists():
        np.save(given, np.random.default_rng(0).random(shape, np.float32))
    if not compiled.exists():
        command = [sys.executable, "-m", "kaas.cli", "compile", str(graph), "-o", str(compiled)]
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
            raise CompileFailed(f"{graph.name} was not compiled, for the reason above")
    return given


def _forget(file: Path) -> None:
    """Drop a file from the page cache."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _started(program: str, model: Path, given: Path, answer: Path) -> tuple[float, float]:
    """Return the seconds from the start of a process until it says that it is ready, and until its first answer."""
    began = perf_counter()
    command = [sys.executable, "-c", program, str(model), str(given), str(answer)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        times = []
        for word in ("ready\n", "answer\n"):
            if child.stdout.readline() != word:
                raise ChildProcessError(f"the process with {model.name} ended with an error, which it wrote above")
            times.append(perf_counter() - began)
    return times[0], times[1]
