"""A cold start: a new process, from its start until it can answer, and until its first answer has come.

ONNX Runtime's process can answer once its session is made, PyTorch's once its module has its weights, AOTInductor's
once its package is loaded. KaaS stands here twice: in the process itself, with the device open and the file of the
compiled model read; and with a pool of its own, where the model is registered.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

import softgpu
from kaas.bench.networks import MODELS
from kaas.errors import CompileFailed, WrongAnswer
from kaas.output_files import write_whole
from kaas.peers.peer_process import PeerProcess
from kaas.peers.systems import PeerSystem, part_of
from softgpu import user_cache

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
TORCH = f"""{READ}sys.path.append({str(Path(__file__).parent)!r})
import torch
from torch_graph import load
model = load(sys.argv[1])
{READY}with torch.inference_mode():
    answer = model(torch.from_numpy(x)).numpy()
{ANSWER}"""
AHEAD = f"""{READ}import torch
from torch._inductor import aoti_load_package
model = aoti_load_package(sys.argv[1])
{READY}with torch.inference_mode():
    answer = model(torch.from_numpy(x)).numpy()
{ANSWER}"""


class StartedSide(NamedTuple):
    """A way to run a model.

    Fields:
        suffix: of the file that the process reads. program: of the process. make: writes the file, given ONNX's and
            the input's. The file's folder is for this file alone, and removed afterwards.
    """

    peer: PeerSystem
    suffix: str
    program: str
    make: Callable[[Path, Path, Path], None]


def _nothing(graph: Path, given: Path, file: Path) -> None:
    """ONNX's file is the file."""


def _compiled(graph: Path, given: Path, file: Path) -> None:  # noqa: ARG001
    command = [sys.executable, "-m", "kaas.cli", "compile", str(graph), "-o", str(file)]
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
        raise CompileFailed(f"{graph.name} was not compiled, for the reason above")


def _weights(graph: Path, given: Path, file: Path) -> None:  # noqa: ARG001
    import onnx

    from kaas.peers.torch_graph import save

    save(onnx.load(str(graph)), file)


def _compiled_ahead(graph: Path, given: Path, file: Path) -> None:
    import torch

    from kaas.peers.torch_graph import compile_ahead, load

    weights = file.with_suffix(".pt")
    _weights(graph, given, weights)
    compile_ahead(load(str(weights)), torch.from_numpy(np.load(given)), file)


SIDES = {
    "KaaS, in the process": StartedSide(PeerSystem.KAAS, ".kaas", LOCAL, _compiled),
    "KaaS, a pool": StartedSide(PeerSystem.KAAS, ".kaas", POOL, _compiled),
    "ONNX Runtime": StartedSide(PeerSystem.ONNXRUNTIME, ".onnx", SESSION, _nothing),
    "PyTorch": StartedSide(PeerSystem.TORCH, ".pt", TORCH, _weights),
    "AOTInductor": StartedSide(PeerSystem.AOTINDUCTOR, ".pt2", AHEAD, _compiled_ahead),
}
RTOL = 1e-3


def measure(
    peers: tuple[PeerSystem, ...], names: tuple[str, ...], rounds: int, folder: Path
) -> dict[str, dict[str, float]]:
    """Return the median seconds to ready and to the first answer by model, side and state of the page cache.

    Args:
        peers: those that are installed.
        names: of MODELS.
        rounds: starts of each side, with the files in the page cache, and dropped from it.
        folder: of the models' files, which a later measurement uses again.

    Raises:
        PeerFailed
        CompileFailed: no compiler is installed, or the compiler failed; its words went to stderr.
        WrongAnswer: two sides give different numbers.
    """
    found: dict[str, dict[str, float]] = {}
    for name in names:
        sides = {side: each for side, each in SIDES.items() if each.peer in peers}
        given = files(name, folder, sides.values())
        times: dict[str, list[tuple[float, float]]] = {}
        for cached in (True, False):
            for turn in range(rounds + 1):  # the first one fills caches, of compiled code too
                for side, each in sides.items():
                    file = folder / f"{name}{each.suffix}"
                    if not cached:
                        _forget(file)
                    with part_of(each.peer):
                        seconds = _started(each.program, file, given, folder / f"{name}-{side}.npy")
                    if turn:
                        times.setdefault(f"{name}, {side}, {'warm' if cached else 'dropped'}", []).append(seconds)
        _same([np.load(folder / f"{name}-{side}.npy") for side in sides], name)
        for title, turns in times.items():
            ready, answer = zip(*turns, strict=True)
            found[title] = {"ready_s": median(ready), "answer_s": median(answer)}
    return found


def _same(answers: list[Any], name: str) -> None:
    scale = float(np.abs(answers[0]).max())
    if any(not np.allclose(each, answers[0], rtol=RTOL, atol=RTOL * scale) for each in answers):
        raise WrongAnswer(f"{name}: the sides give different numbers")


def files(name: str, folder: Path, sides: Iterable[StartedSide]) -> Path:
    """Make the model's files that are missing, each whole or not at all. Return the path of its input.

    Raises:
        PeerFailed
        CompileFailed
        OSError, with the file's name
    """
    make, shape = MODELS[name]
    given, graph = (folder / f"{name}{suffix}" for suffix in (".npy", ".onnx"))
    if not graph.exists():
        write_whole(graph, make().SerializeToString())
    if not given.exists():
        data = BytesIO()
        np.save(data, np.random.default_rng(0).random(shape, np.float32))
        write_whole(given, data.getvalue())
    for side in sides:
        if not (file := folder / f"{name}{side.suffix}").exists():
            with part_of(side.peer), TemporaryDirectory(dir=folder) as making:
                side.make(graph, given, made := Path(making, file.name))
                made.replace(file)
    return given


@cache
def _files_of_starts() -> tuple[Path, ...]:
    """Return the files that a start may read: packages, KaaS itself, compiled kernels."""
    packages = {
        sysconfig.get_path("platlib"),
        sysconfig.get_path("purelib"),
        str(Path(__file__).parents[1]),
        *softgpu.__path__,
    }
    folders = [*map(Path, packages), user_cache.cache_root("kaas"), user_cache.cache_root()]
    return tuple(path for folder in folders for path in folder.rglob("*") if path.is_file())


def _forget(model: Path) -> None:
    """Drop a model's file and all files of `_files_of_starts` from the page cache, but for what other programs map."""
    with model.open("rb") as opened:
        os.fsync(opened.fileno())  # a page that is not written yet stays
    for path in (model, *_files_of_starts()):
        with suppress(FileNotFoundError), path.open("rb", buffering=0) as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _started(program: str, model: Path, given: Path, answer: Path) -> tuple[float, float]:
    """Return the seconds from the start of a process until it says that it is ready, and until its first answer.

    Raises:
        ChildProcessError
    """
    began = perf_counter()
    with PeerProcess(program, (str(model), str(given), str(answer))) as child:
        child.expect("ready")
        ready_s = perf_counter() - began
        child.expect("answer")
        answer_s = perf_counter() - began
        child.end()
    return ready_s, answer_s
