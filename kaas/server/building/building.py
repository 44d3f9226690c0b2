"""Builds kTasks of remote clients without blocking others: large kTasks in a separate process.

Building checks every kernel in 65 µs of Python: a thread that builds thousands of them would keep the server's other
threads from running. The server needs only a few facts of a built kTask. The facts outlive the server, so that it does
not build a function again.
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
"""The event loop itself builds a kTask with up to so many kernels and bytes, in some milliseconds."""
PROCESS_KERNELS, PROCESS_BYTES = 512, 256 << 10
"""A separate process builds larger kTasks, a thread smaller ones. A kernel has some 200 bytes, but a kTask with few
kernels may have a hundred thousand buffers, and names of any length."""
LIMIT_S = 120.0
"""Seconds that this process may take for one kTask."""
NICENESS = 10
"""The niceness of this process, so that requests come first."""
LONGEST_LABEL = 200
"""The most characters of a kTask's label. A kTask without a name is labeled by its first kernel's symbol and digits of
its key, and a mangled symbol may have any length."""
_STEP = "building a kTask"


class Facts(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """The facts about a built kTask that a server keeps.

    Fields:
        task_inputs, task_outputs: buffers as of `codec.from_buffer`. iterations: the scalar with the number of runs of
            the kernels, "" for none. kernels: their number. libraries: hashes, in the order in which kernels name them.
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
        """The input buffers."""
        return tuple(map(codec.to_buffer, self.task_inputs))

    @cached_property
    def outputs(self) -> Sequence[Buffer]:
        """The output buffers."""
        return tuple(map(codec.to_buffer, self.task_outputs))


class Built(msgspec.Struct, frozen=True):
    """A built kTask. task: encoded anew by `encode_task`. used_s: processor seconds of building."""

    facts: Facts
    task: bytes
    used_s: float


class NotBuilt(Exception):
    """A failed build. used_s: processor seconds that it took. cause: the error for the client."""

    def __init__(self, used_s: float, cause: KaasError) -> None:
        super().__init__(used_s, cause)
        self.used_s, self.cause = used_s, cause


def build(sent: SentTask, libraries: Mapping[str, Library]) -> tuple[Facts, bytes]:
    """Build a kTask. Return its facts and its encoding.

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
    """Shorten a label in its middle, since its end has the digits of the key."""
    half = LONGEST_LABEL // 2
    return label if len(label) <= LONGEST_LABEL else f"{label[: half - 1]}…{label[-half:]}"


class Builder:
    """Builds kTasks, large ones one at a time in order. Use an object of this class from one event loop only."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._builder_process = Steps({_STEP: f"{__name__}:{build_in_process.__name__}"}, 1, LIMIT_S)

    async def built(
        self, client: str, sent: SentTask, libraries: Mapping[str, Library], files: Mapping[str, Path]
    ) -> Built:
        """Build a kTask. files: of the libraries, by hash.

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
        values = {name: bytes(each.data) for name, each in made.items()}
        used_s = msgspec.msgpack.decode(values["used_s"], type=float)
        if "error" in values:
            raise NotBuilt(used_s, decode_error(values["error"]))
        return Built(msgspec.msgpack.decode(values["facts"], type=Facts), values["task"], used_s)

    def close(self) -> None:
        """End the separate process."""
        self._builder_process.close()


def _timed(sent: SentTask, libraries: Mapping[str, Library]) -> Built:
    began_s = thread_time()
    try:
        facts, task = build(sent, libraries)
    except KaasError as error:
        raise NotBuilt(thread_time() - began_s, error) from error
    return Built(facts, task, thread_time() - began_s)


def build_in_process(values: dict[str, bytes]) -> dict[str, bytes]:
    """Build a kTask in the separate process. A library whose file has changed counts as missing."""
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    began_s = process_time()
    try:
        paths = msgspec.msgpack.decode(values["paths"], type=list[str])
        libraries = [Library(decode_images(Path(path).read_bytes())) for path in paths]
        facts, task = build(decode_task(values["task"]), {library.hash: library for library in libraries})
        result = {"facts": msgspec.msgpack.encode(facts), "task": task}
    except OSError as error:
        result = {"error": encode_error(KaasError(f"the server could not use its disk: {error.strerror}"))}
    except KaasError as error:
        result = {"error": encode_error(error)}
    return result | {"used_s": msgspec.msgpack.encode(process_time() - began_s)}
