"""kTasks of remote clients, built where nobody waits for it: large ones by a process beside the server's.

Building checks every kernel, 65 µs of Python for each: a thread that does it for thousands of them keeps the server's
other threads from running. What a server has to know of a kTask comes back as a few facts, which outlive it too: it
builds no function a second time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from time import monotonic, process_time, thread_time
from typing import Any

import msgspec

from kaas.errors import KaasError, StepFailed
from kaas.ktask import codec
from kaas.ktask.arguments import Buffer, Scalar
from kaas.ktask.graph import KTask
from kaas.ktask.library import Library
from kaas.server.steps.steps import Steps
from kaas.wire.error_codec import decode_error, encode_error
from kaas.wire.sent_ktasks import SentTask, decode_images, decode_task, encode_task

AT_ONCE_KERNELS, AT_ONCE_BYTES = 64, 32 << 10
"""Up to so many, in a kTask of so many bytes, are built by the event loop itself: that takes some milliseconds."""
PROCESS_KERNELS, PROCESS_BYTES = 512, 256 << 10
"""More are built by the process beside the server's, fewer by a thread. A kernel has some 200 bytes; a kTask of few may
have a hundred thousand buffers, and names of any length."""
LIMIT_S = 120.0
"""How long that process may take for one."""
NICENESS = 10
"""Of that process: requests of others come first."""
LONGEST_LABEL = 200
"""Characters by which people know a kTask. One without a name has the first kernel's symbol and digits of its key, and
a mangled symbol may be as long as it likes."""
_STEP = "building a kTask"


class Facts(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """What a server knows of a kTask that was built.

    Fields:
        task_inputs, task_outputs: buffers as `codec.from_buffer` gives them. iterations: the scalar that says how often
            the kernels run, "" for none. kernels: how many. libraries: hashes, in the order in which kernels name them.
    """

    key: str
    label: str
    task_inputs: list[dict[str, Any]]
    task_outputs: list[dict[str, Any]]
    scalars: dict[str, str]
    iterations: str
    kernels: int
    libraries: list[str]

    @cached_property
    def inputs(self) -> Sequence[Buffer]:
        return tuple(map(codec.to_buffer, self.task_inputs))

    @cached_property
    def outputs(self) -> Sequence[Buffer]:
        return tuple(map(codec.to_buffer, self.task_outputs))


class Built(msgspec.Struct, frozen=True):
    """task: as `encode_task` gives it, whatever the client has sent. used_s: processor seconds that it took."""

    facts: Facts
    task: bytes
    used_s: float


class NotBuilt(Exception):
    """used_s: processor seconds that it took. cause: what the client is told."""

    def __init__(self, used_s: float, cause: KaasError) -> None:
        super().__init__(used_s, cause)
        self.used_s, self.cause = used_s, cause


def build(sent: SentTask, libraries: Mapping[str, Library]) -> tuple[Facts, bytes]:
    """
    Raises:
        InvalidGraph, InvalidCode
    """
    task = sent.built(libraries)
    return _facts(task), encode_task(task)


def _facts(task: KTask) -> Facts:
    return Facts(
        task.key,
        _short(task.label),
        [codec.from_buffer(buffer) for buffer in task.inputs],
        [codec.from_buffer(buffer) for buffer in task.outputs],
        dict(task.scalars),
        task.iterations.name if isinstance(task.iterations, Scalar) else "",
        len(task.kernels),
        [library.hash for library in task.libraries],
    )


def _short(label: str) -> str:
    """Its end has the digits of the key."""
    half = LONGEST_LABEL // 2
    return label if len(label) <= LONGEST_LABEL else f"{label[: half - 1]}…{label[-half:]}"


class Builder:
    """Belongs to one event loop. One large kTask is built at a time, of whoever asked first."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._builder_process = Steps({_STEP: f"{__name__}:{build_in_process.__name__}"}, 1, LIMIT_S)

    async def built(
        self, client: str, sent: SentTask, libraries: Mapping[str, Library], files: Mapping[str, Path]
    ) -> Built:
        """files: of the libraries, by hash.

        Raises:
            NotBuilt
        """
        nbytes = len(sent.data)
        if sent.kernels > PROCESS_KERNELS or nbytes > PROCESS_BYTES:
            return await self._built_in_process(client, sent, files)
        if sent.kernels > AT_ONCE_KERNELS or nbytes > AT_ONCE_BYTES:
            return await asyncio.to_thread(_timed, sent, libraries)
        return _timed(sent, libraries)

    async def _built_in_process(self, client: str, sent: SentTask, files: Mapping[str, Path]) -> Built:
        paths = msgspec.msgpack.encode([str(path) for path in files.values()])
        async with self._turn:
            began_s = monotonic()
            try:
                made = await self._builder_process.run(_STEP, {"task": sent.data, "paths": paths}, {"client": client})
            except StepFailed as error:
                cause = KaasError(f"this kTask cannot be built: {error.message}")
                raise NotBuilt(monotonic() - began_s, cause) from error
        said = {name: bytes(each.data) for name, each in made.items()}
        used_s = msgspec.msgpack.decode(said["used_s"], type=float)
        if "error" in said:
            raise NotBuilt(used_s, decode_error(said["error"]))
        return Built(msgspec.msgpack.decode(said["facts"], type=Facts), said["task"], used_s)

    def close(self) -> None:
        self._builder_process.close()


def _timed(sent: SentTask, libraries: Mapping[str, Library]) -> Built:
    began_s = thread_time()
    try:
        facts, task = build(sent, libraries)
    except KaasError as error:
        raise NotBuilt(thread_time() - began_s, error) from error
    return Built(facts, task, thread_time() - began_s)


def build_in_process(values: dict[str, bytes]) -> dict[str, bytes]:
    """In the process beside the server's. A library that is another one by now is missing."""
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    began_s = process_time()
    try:
        paths = msgspec.msgpack.decode(values["paths"], type=list[str])
        libraries = [Library(decode_images(Path(path).read_bytes())) for path in paths]
        facts, task = build(decode_task(values["task"]), {library.hash: library for library in libraries})
        said = {"facts": msgspec.msgpack.encode(facts), "task": task}
    except OSError as error:
        said = {"error": encode_error(KaasError(f"the server could not use its disk: {error.strerror}"))}
    except KaasError as error:
        said = {"error": encode_error(error)}
    return said | {"used_s": msgspec.msgpack.encode(process_time() - began_s)}
