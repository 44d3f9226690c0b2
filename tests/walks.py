"""The functions that one warm request enters, in each process that it passes through, recorded while it runs.

`python -m tests.walks` prints them with their files; `make map` counts the files of a call.
"""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAUNCH = "GraphInstance.launch"
"""The last function of ours before `cuGraphLaunch`."""
SEND = "MessageStream.send"
"""The last function of ours before a message leaves a process over a Unix socket."""
RECEIVE = "MessageStream.read"
"""The first function of ours after a message has come over a Unix socket."""
ARRIVE = "ServerListener._arrived"
"""The first function of ours after a client's message has come to a server."""
PROGRAM, POOL, EXECUTOR, SERVER = "program", "pool", "executor", "server"
_MODULES = {"kaas.pool.on_processes.process_pool": POOL, "kaas.worker.executor_process": EXECUTOR, "serve": SERVER}
_WAYS = {
    POOL: (RECEIVE, "ProgramSessions._submit"),
    EXECUTOR: (RECEIVE, "ExecutorWorker._run"),
    SERVER: (ARRIVE, "Invocations.ask"),
}
"""Where a call's message comes in, and the first function of ours that only a call enters: on a loaded machine an
earlier message is taken while the flag is up."""

_TASK = """
import mmap, os, sys
from itertools import cycle
import numpy as np
import kaas
from kaas.code.kernels import library

flag = mmap.mmap(os.open(os.path.join(os.environ["KAAS_WALK_FOLDER"], "flag"), os.O_RDWR), 1)
n = 256
a, b, c = (kaas.Buffer(name, (n,), "float32") for name in "abc")
arguments = [kaas.In(a), kaas.In(b), kaas.Out(c), kaas.u32(n)]
kernel = kaas.Kernel(library("nearest_neighbours"), "vsub", grid=1, block=256, args=arguments)
task, x = kaas.KTask([kernel], outputs=[c]), np.ones(n, np.float32)

def walk(call, status):
    for _ in range(20):
        call()
    status()  # what the pool does after the last call's reply is done when it replies to this
    flag[0] = 1
    call()
    flag[0] = 0
"""
_CALL = """
kaas.init(ray=False, name=sys.argv[1], devices={devices})
while any(device.state == "starting" for device in kaas.status().devices):
    pass  # an executor that comes up between warm calls is free, but lacks their constants: a choice more
functions = [kaas.register(task, constants={{"a": x + i}}) for i in range({functions})]
function, turns = functions[0], cycle(functions)
walk(lambda: {call}.result(), kaas.status)
kaas.shutdown()
"""
CALLS = ("function.call(b=x)", 'kaas.call(function, {"b": x})', 'kaas.call(task, {"a": x, "b": x})')
"""The calls of a program that does not need Ray."""
MOVED = "next(turns).call(b=x)"
"""The same by three functions in turns, whose constants lie at three addresses: more than a graph has instances."""
_REMOTE = """
with kaas.Client(sys.argv[1]) as client:
    function = client.register(task, {"a": x})
    walk(lambda: client.call(function, {"b": x}).result(), client.status)
"""


@dataclass(frozen=True)
class Step:
    """A function that a process entered: its file, as a path in the repository, and its qualified name."""

    file: str
    function: str


Walk = dict[str, list[Step]]
"""Steps in the order of first entry, by process: PROGRAM, POOL or SERVER, EXECUTOR."""


def call(source: str = CALLS[0]) -> Walk:
    """Record one warm call on a pool without Ray, with one constant and one input. source: one of CALLS, or MOVED."""
    devices, functions = ('[kaas.Device("software")]', 3) if source == MOVED else (None, 1)
    with tempfile.TemporaryDirectory() as folder:
        program = _TASK + _CALL.format(call=source, devices=devices, functions=functions)
        _run(Path(folder), program, f"walk-{os.getpid()}")
        return read(Path(folder))


def remote() -> Walk:
    """Record one warm `Client.call` to a server on this machine."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kaas.yaml").write_text("listen: {port: 0}\ncode: {any: true}\n")
        serve = [sys.executable, "-m", "kaas.cli", "serve", "--config", "kaas.yaml", "--insecure"]
        environment = _environment(folder)
        with subprocess.Popen(serve, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                address = next(word for line in server.stdout for word in line.split() if word.startswith("tcp://"))
                _run(folder, _TASK + _REMOTE, address.rstrip(".,"))
            finally:
                server.send_signal(signal.SIGTERM)
                server.communicate()
        return read(folder)


def files_of_a_call(walk: Walk) -> list[str]:
    """Return the files that a call enters on its way to `cuGraphLaunch`, in the order of first entry.

    The way begins in the pool and in the executor when the message comes: what a thread enters before belongs to an
    earlier wait. It ends in the program and in the pool when the message leaves, in the executor with the launch.
    """
    ways = (
        walk[PROGRAM][: _place(walk[PROGRAM], SEND)],
        walk[POOL][_place(walk[POOL], RECEIVE) - 1 : _place(walk[POOL], SEND)],
        walk[EXECUTOR][_place(walk[EXECUTOR], RECEIVE) - 1 : _place(walk[EXECUTOR], LAUNCH)],
    )
    return list(dict.fromkeys(step.file for way in ways for step in way))


def _place(steps: list[Step], function: str) -> int:
    """Return the number of steps up to a function, with it."""
    return 1 + next(place for place, step in enumerate(steps) if step.function == function)


def _environment(folder: Path) -> dict[str, str]:
    flag = folder / "flag"
    if not flag.exists():
        flag.write_bytes(bytes(mmap.PAGESIZE))
    paths = [str(Path(__file__).parent / "recorder"), str(ROOT), str(ROOT / "softgpu")]
    walk = {"KAAS_WALK_FOLDER": str(folder), "KAAS_WALK_ROOT": f"{ROOT}/", "PYTHONPATH": os.pathsep.join(paths)}
    return {**os.environ, **walk, "XDG_RUNTIME_DIR": str(folder)}  # other pools of this user have the same name


def _run(folder: Path, program: str, argument: str) -> None:
    subprocess.run([sys.executable, "-c", program, argument], env=_environment(folder), check=True)


def read(folder: Path) -> Walk:
    """Read what the processes of one request wrote into a folder."""
    found: Walk = {}
    for path in folder.glob("*.walk"):
        command, *lines = path.read_text().splitlines()
        process = next((name for word, name in _MODULES.items() if word in command.split()), PROGRAM)
        steps = (Step(*line.split(" ", 1)) for line in lines)
        ours = [step for step in steps if step.file.startswith("kaas/")]
        ours = list(dict.fromkeys(_way(ours, *_WAYS[process]) if process in _WAYS else ours))
        found[process] = max(ours, found.get(process, []), key=len)  # an executor without a run enters little
    return found


def _way(steps: list[Step], comes: str, only: str) -> list[Step]:
    """Return the steps from a call's message on, with the one that took it off the connection, without earlier ones."""
    if only not in (step.function for step in steps):
        return steps
    came = [place for place, step in enumerate(steps[: _place(steps, only)]) if step.function == comes]
    return steps[max(came[-1] - 1, 0) :]


def main() -> None:
    for title, walk in (("a call", call()), ("a remote call", remote())):
        for process, steps in walk.items():
            print(f"{title}: {process}")
            print(*(f"  {step.file}: {step.function}" for step in steps), sep="\n")
    files = files_of_a_call(call())
    print(f"{len(files)} files from Function.call to cuGraphLaunch:", *files, sep="\n  ")


if __name__ == "__main__":
    main()
