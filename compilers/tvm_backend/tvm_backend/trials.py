"""MetaSchedule's candidates, built by this package's lowering and measured as kTasks in another process."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule

import kaas
from kaas import Buffer, In, InOut, Kernel, KTask, Literal, Out
from kaas.errors import DeviceUnavailable, KaasError
from tvm_backend import library, lowering
from tvm_backend.accesses import uses
from tvm_backend.launches import Launch, Workspace, launches
from tvm_backend.measuring import REPEATS
from tvm_backend.targets import Target

LIMIT_S = 60.0
"""The time limit of one candidate, with its loading."""

START_LIMIT_S = 300.0
"""The time limit for opening the device: the software GPU may have to be compiled first."""

ENTRY = "main"


_tvm = threading.Lock()
"""Held while `lowering.cuda_source` replaces functions of TVM. The compilation, which takes longest, needs no lock."""


class TrialFailed(Exception):
    """A candidate that cannot be built or run. Always caught: the trial has no result."""


def ktask(module: tvm.IRModule, target: Target) -> KTask:
    """Return a scheduled PrimFunc as a kTask of its own.

    Its outputs are the buffers that it stores to. Their earlier contents do not count.
    """
    shapes = [tuple(int(n) for n in parameter.shape) for parameter in module[ENTRY].params]
    with _tvm, target.tvm:
        try:
            host, device = lowering.split(module, target)
            source = lowering.cuda_source(device, target)
        except Exception as error:
            # TVM's passes and code generator may raise any error about a schedule; the next schedule may be better
            raise TrialFailed(f"TVM cannot lower it: {str(error).strip().partition(chr(10))[0]}") from error
    made, problems = launches(host[ENTRY], shapes)
    if problems:
        raise TrialFailed("; ".join(map(str, problems)))
    code = library.library(source, target)
    graph = _TrialGraph(code, {variable.name_hint: uses(f) for variable, f in device.functions.items()})
    for position, (parameter, shape) in enumerate(zip(module[ENTRY].params, shapes, strict=True)):
        graph.buffers[position] = Buffer(f"p{position}", shape, str(parameter.dtype))
    kernels = [graph.kernel(launch) for launch in made]
    outputs = [graph.buffers[base] for base in graph.written if isinstance(base, int)]
    return KTask(kernels, outputs, kaas.Scalar(REPEATS, "i64"), name="candidate")


@dataclass(slots=True)
class _TrialGraph:
    code: kaas.Library
    uses: dict[str, Any]
    buffers: dict[int | Workspace, Buffer] = field(default_factory=dict)
    written: dict[int | Workspace, None] = field(default_factory=dict)

    def kernel(self, launch: Launch) -> Kernel:
        args: list[Any] = []
        stored = []
        for argument, use in zip(launch.arguments, self.uses[launch.symbol], strict=True):
            if isinstance(argument, Literal):
                args.append(argument)
                continue
            base = argument.base
            if isinstance(base, Workspace) and base not in self.buffers:
                self.buffers[base] = Buffer(f"w{len(self.buffers)}", base.nbytes)
            access = (InOut if base in self.written else Out) if use.stores else In
            if use.stores:
                stored.append(base)
            args.append(access(self.buffers[base], argument.offset_bytes))
        self.written.update(dict.fromkeys(stored))
        return Kernel(self.code, launch.symbol, launch.grid, launch.block, args, launch.shared_bytes)


class Bench:
    """A process that measures candidates on a device; replaced if a candidate ends it or takes too long."""

    def __init__(self, device: str, limit_s: float = LIMIT_S) -> None:
        self.device, self.limit_s = device, limit_s
        self.device_name = ""
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()

    def measure(self, task: Path, outputs: Path | None = None) -> list[float]:
        """Return the seconds of one launch, measured once or several times.

        Raises:
            TrialFailed: the candidate is wrong, ended the process or exceeded the limit.
            DeviceUnavailable: there is no device to measure on.
        """
        process = self.start()
        assert process.stdin is not None
        print(json.dumps({"task": str(task), "outputs": outputs and str(outputs)}), file=process.stdin, flush=True)
        reply = self._reply(process, self.limit_s)
        if "seconds" not in reply:
            if reply["lost"]:  # the process ends after its device is lost, but perhaps not before the next candidate
                self._end()
            raise TrialFailed(reply["error"])
        return [float(value) for value in reply["seconds"]]

    def start(self) -> subprocess.Popen[str]:
        """Return the running process, started if need be.

        Raises:
            DeviceUnavailable: there is no device to measure on.
        """
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        measuring = Path(__file__).with_name("measuring.py")
        process = self._process = subprocess.Popen(
            [sys.executable, "-P", str(measuring), self.device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, bufsize=1, env=environment,
        )  # fmt: skip
        try:
            reply = self._reply(process, START_LIMIT_S)
        except TrialFailed as error:
            raise DeviceUnavailable(f"kernels cannot be measured: {error}") from error
        if "device" not in reply:
            raise DeviceUnavailable(f"kernels are measured on a GPU, and there is none to use: {reply['error']}")
        self.device_name = reply["device"]
        return process

    def _reply(self, process: subprocess.Popen[str], limit_s: float) -> dict[str, Any]:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            ready = selector.select(limit_s)
        line = process.stdout.readline() if ready else ""
        if line.endswith("\n"):
            reply: dict[str, Any] = json.loads(line)
            return reply
        self._end()
        if not ready:
            raise TrialFailed(f"not done within {limit_s:g} s")
        raise TrialFailed(f"it ended its process: {self._last_error_line()}")

    def _last_error_line(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "without a word"

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()
        self._errors.seek(0)
        self._errors.truncate()

    def close(self) -> None:
        """End the process."""
        self._end()
        self._errors.close()


@contextmanager
def bench(device: str, limit_s: float = LIMIT_S) -> Iterator[Bench]:
    """Yield a `Bench`, and close it afterwards."""
    made = Bench(device, limit_s)
    try:
        yield made
    finally:
        made.close()


def build(module: tvm.IRModule, target: Target, path: Path) -> Path:
    """Write a candidate's kTask to a file, and return the file's path.

    Raises:
        TrialFailed: the candidate cannot be built.
    """
    try:
        path.write_bytes(ktask(module, target).to_msgpack())
    except KaasError as error:
        raise TrialFailed(error.message) from error
    return path


@derived_object
class Builder(meta_schedule.builder.PyBuilder):  # type: ignore[misc]
    """Builds candidates into a folder, one thread for each processor."""

    def __init__(self, target: Target, folder: Path, failed: Callable[[str], None]) -> None:
        super().__init__()
        self.target, self.folder, self.failed, self.count = target, folder, failed, 0

    def build(self, build_inputs: list[Any]) -> list[Any]:
        """Return a MetaSchedule BuilderResult for each candidate: its kTask's path, or the reason of its failure."""
        paths = [self.folder / f"{self.count + index}.ktask" for index in range(len(build_inputs))]
        self.count += len(paths)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            return list(threads.map(self._result, [given.mod for given in build_inputs], paths))

    def _result(self, module: tvm.IRModule, path: Path) -> Any:
        try:
            return meta_schedule.builder.BuilderResult(str(build(module, self.target, path)), None)
        except TrialFailed as error:
            self.failed(str(error))
            return meta_schedule.builder.BuilderResult(None, str(error))


@derived_object
class Runner(meta_schedule.runner.PyRunner):  # type: ignore[misc]
    """Measures candidates one after the other, and reports each to `finished`."""

    def __init__(self, where: Bench, finished: Callable[[str | None], None]) -> None:
        super().__init__()
        self.where, self.finished = where, finished

    def run(self, runner_inputs: list[Any]) -> list[Any]:
        """Return a MetaSchedule RunnerFuture for each candidate, with its result or the reason of its failure."""
        return [_known(self._result(Path(given.artifact_path))) for given in runner_inputs]

    def _result(self, path: Path) -> Any:
        try:
            seconds, problem = self.where.measure(path), None
        except TrialFailed as error:
            seconds, problem = None, str(error)
        path.unlink()
        self.finished(problem)
        return meta_schedule.runner.RunnerResult(seconds, problem)


def _known(result: Any) -> Any:
    return meta_schedule.runner.RunnerFuture(f_done=lambda: True, f_result=lambda: result)
