"""What a remote client registers, made into a function of the pool: its libraries found, its constants bound."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from kaas.errors import KaasError, QuotaExceeded, UnexpectedInput
from kaas.ktask.library import Library
from kaas.ktask.request import check_fit
from kaas.pool.functions import Registry
from kaas.pool.on_processes.objects import HeldObject, HeldObjects
from kaas.server.building.building import Builder, Facts, NotBuilt
from kaas.server.building.remote_function import InvocableFunction, label_of
from kaas.server.building.uploads import AT_ONCE_BYTES, Uploads, missing
from kaas.server.replies import message_of
from kaas.server.state.blob_store import LIBRARY, VALUE, Blob
from kaas.server.state.object_store import NAME_BYTES, ObjectStore, shown
from kaas.server.usage.quotas import Window
from kaas.wire import specs
from kaas.wire.sent_ktasks import SentTask, decode_task, with_code


class KeptFunction(msgspec.Struct, frozen=True, array_like=True):
    """What outlives the server of a function. constants: a value's hash and dtype by buffer. key: what the client knows
    it by. signature: of its kTask. facts: None for one that an earlier version has kept, which is built once more."""

    client: str
    name: str
    task: bytes
    constants: dict[str, tuple[str, str]]
    before: str
    after: str
    key: str = ""
    signature: bytes = b""
    facts: Facts | None = None

    def asks_for(self, other: KeptFunction) -> bool:
        """Whether the other one, which has no key yet, is the same."""
        return msgspec.structs.replace(self, key="", facts=None) == other

    def keyed(self, facts: Facts, task: bytes) -> KeptFunction:
        """With its key: that of its kTask, or of all that makes it; and without what its client has sent beside it,
        which would count for nothing. task: encoded anew."""
        key = facts.key
        if self.constants or self.before or self.after:
            parts = [key, sorted(self.constants.items()), self.before, self.after]
            key = hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()
        return msgspec.structs.replace(self, task=task, key=key, facts=facts)


@dataclass(slots=True, eq=False)
class ClientFunction:
    """A function that a client has.

    Fields:
        ready: or why it is not. contents: what must not give way. nbytes: that count. listed: what its client is told
            of it, as it goes there: one that has a thousand may ask a thousand times.
    """

    kept: KeptFunction
    ready: InvocableFunction | KaasError
    contents: Sequence[Blob]
    nbytes: int
    listed: msgspec.Raw = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.listed = msgspec.Raw(msgspec.msgpack.encode(self._described()))

    def _described(self) -> dict[str, Any]:
        kept, ready = self.kept, self.ready
        known: dict[str, Any] = {
            "name": kept.name,
            "function": kept.key,
            "constants": {buffer: sha256 for buffer, (sha256, _) in kept.constants.items()},
            "before": kept.before,
            "after": kept.after,
        }
        if isinstance(ready, KaasError):
            return known | {"error": message_of(ready)}
        return known | {
            "task": ready.function.spec.task_key,
            "label": ready.function.label,
            **dict(zip(("inputs", "outputs", "scalars"), ready.described, strict=True)),
            "bytes": self.nbytes,
        }

    @property
    def handle(self) -> str:
        return self.kept.name or self.kept.key

    @property
    def kernels(self) -> int:
        """That count."""
        return 0 if self.kept.facts is None else self.kept.facts.kernels


class FunctionBuilder:
    """Belongs to one event loop."""

    def __init__(self, uploads: Uploads, values: ObjectStore, objects: HeldObjects, registry: Registry) -> None:
        self._uploads = uploads
        self._contents = uploads.contents
        self._values = values
        self._objects = objects
        self._registry = registry
        self._builder = Builder()
        self._used: dict[str, Window] = {}  # processor time of building, by client

    def close(self) -> None:
        self._builder.close()

    async def restored(self, kept: KeptFunction, known: dict[tuple[str, str], Library]) -> ClientFunction:
        """A function of an earlier life, as `made` makes it: without a look at its kernels, if its facts are kept.

        Raises:
            KaasError
        """
        if kept.facts is not None:
            return await self._made(kept, kept.facts.libraries, known, None)
        sent = await _away(len(kept.task), decode_task, kept.task)
        return await self._made(kept, sent.libraries, known, sent)

    async def made(self, kept: KeptFunction, others_kernels: int) -> ClientFunction:
        """A function that is known to the pool, and what it needs, which does not give way from now on. others_kernels:
        of its client's other functions.

        Raises:
            KaasError
        """
        sent = await _away(len(kept.task), decode_task, kept.task)
        self._check_kernels(kept.client, sent.kernels, others_kernels)
        self._check_used(kept.client)
        return await self._made(kept, sent.libraries, {}, sent)

    async def _made(
        self,
        kept: KeptFunction,
        needed: Sequence[str],
        known: dict[tuple[str, str], Library],
        sent: SentTask | None,
    ) -> ClientFunction:
        """needed: hashes of its libraries. known: libraries by client and hash, to which those that it needs are added.
        sent: what is to be built, None if its facts are known."""
        with ExitStack() as undo:
            contents = self._needed(kept, needed, undo)
            for each in needed:
                if (kept.client, each) not in known:
                    known[kept.client, each] = await self._uploads.library(kept.client, each)
            libraries = {each: known[kept.client, each] for each in needed}
            if sent is not None:
                files = {content.hash: content.path for content in contents if content.kind == LIBRARY}
                kept = await self._built(kept, sent, libraries, files)
            task = kept.facts
            assert task is not None, "they are kept, or were found"
            self._uploads.allowed.check_task(task, libraries.values(), kept.signature)
            in_order = {each: libraries[each] for each in task.libraries}
            data = await _away(len(kept.task) + _code_bytes(libraries), with_code, kept.task, in_order)
            bindings, constants = await self._bound(kept, task)
            self._contents.charge(kept.client, LIBRARY, len(data))
            undo.callback(self._contents.refund, kept.client, LIBRARY, len(data))
            label = label_of(kept.name, kept.key, task.label, constants)
            function = self._registry.lend(specs.FunctionSpec(task.key, bindings, kept.client), task, data, label)
            undo.pop_all()
        bound = {binding.buffer for binding in bindings}
        ready = InvocableFunction(
            name=kept.name,
            key=kept.key,
            function=function,
            constants=constants,
            given={buffer.name: buffer for buffer in task.inputs if buffer.name not in bound},
            scalars=task.scalars,
            iterations=task.iterations,
            outputs=tuple(buffer.name for buffer in task.outputs),
            before=kept.before,
            after=kept.after,
        )
        return ClientFunction(kept, ready, contents, len(data))

    async def _built(
        self, kept: KeptFunction, sent: SentTask, libraries: Mapping[str, Library], files: Mapping[str, Path]
    ) -> KeptFunction:
        """With its facts. Its client is charged for the time, whatever comes of it.

        Raises:
            KaasError
        """
        used = self._used.setdefault(kept.client, Window())
        try:
            built = await self._builder.built(kept.client, sent, libraries, files)
        except NotBuilt as error:
            used.add(monotonic(), int(error.used_s * 1e9))
            raise error.cause from error
        used.add(monotonic(), int(built.used_s * 1e9))
        return kept.keyed(built.facts, built.task)

    def _check_kernels(self, client: str, kernels: int, others_kernels: int) -> None:
        """
        Raises:
            QuotaExceeded
        """
        limits = self._uploads.limits(client)
        quotas = (("task_kernels", limits.task_kernels, 0), ("kernels", limits.kernels, others_kernels))
        for quota, limit, used in quotas:
            if limit is not None and used + kernels > limit:
                has = f" and has {used}" if used else ""
                message = f"{client!r} may have {quota} of {limit}{has}, and this kTask has {kernels} kernels"
                raise QuotaExceeded(message, client=client, quota=quota, limit=limit, used=used, needed=kernels)

    def _check_used(self, client: str) -> None:
        """
        Raises:
            QuotaExceeded
        """
        limit, used, now_s = self._uploads.limits(client).build_s_per_minute, self._used.get(client), monotonic()
        if limit is None or used is None or not (wait_s := used.below(now_s, limit * 1e9)):
            return
        used_s = used.total(now_s) / 1e9
        message = f"{client!r} may have build_s_per_minute of {limit:g}, and building its kTasks took {used_s:.3g} s"
        again = {} if wait_s == inf else {"retry_s": wait_s}
        raise QuotaExceeded(message, client=client, quota="build_s_per_minute", limit=limit, used=used_s, **again)

    def _needed(self, kept: KeptFunction, libraries: Sequence[str], undo: ExitStack) -> Sequence[Blob]:
        """What it needs, used once more, unless undone. libraries: their hashes.

        Raises:
            MissingContent
        """
        wanted = [(each, LIBRARY) for each in libraries]
        wanted += [(each, VALUE) for each in dict.fromkeys(sha256 for sha256, _ in kept.constants.values())]
        found = [self._contents.complete(kept.client, *each) for each in wanted]
        contents = [content for content in found if content is not None]
        if len(contents) < len(wanted):
            raise missing(*(each for (each, _), content in zip(wanted, found, strict=True) if content is None))
        for content in contents:
            content.uses += 1
            undo.callback(self._contents.release, content)
        return contents

    async def _bound(self, kept: KeptFunction, task: Facts) -> tuple[tuple[specs.Binding, ...], HeldObject | None]:
        """
        Raises:
            UnexpectedInput, WrongDtype, WrongSize, MissingContent
        """
        inputs = {buffer.name: buffer for buffer in task.inputs}
        entries: dict[str, int] = {}
        bindings = []
        parts = []
        for name, (sha256, dtype) in sorted(kept.constants.items()):
            if name not in inputs:
                raise UnexpectedInput(
                    f"kTask {task.label!r} has no input {shown(name)}",
                    task=task.label,
                    buffer=name[:NAME_BYTES],
                    near=(),
                )
            content = self._contents.complete(kept.client, sha256, VALUE)
            assert content is not None, "it is needed, and does not give way"
            check_fit(inputs[name], content.nbytes, dtype, None)
            if sha256 not in entries:
                entries[sha256] = len(entries)
                held = await self._values.held(content)
                if held is None:
                    raise missing(sha256)
                parts.append(held)
            bindings.append(specs.Binding(name, entries[sha256]))
        return tuple(bindings), self._objects.together(parts) if parts else None

    def let_go(self, entry: ClientFunction) -> None:
        """It is needed no more but for requests that run."""
        for content in entry.contents:
            self._contents.release(content)
        if isinstance(entry.ready, InvocableFunction):
            self._registry.give_back(entry.ready.function.key, entry.ready.label)
            self._contents.refund(entry.kept.client, LIBRARY, entry.nbytes)


def _code_bytes(libraries: Mapping[str, Library]) -> int:
    return sum(library.nbytes for library in libraries.values())


async def _away(nbytes: int, work: Any, *args: Any) -> Any:
    """Done by another thread if it is about many bytes."""
    return work(*args) if nbytes <= AT_ONCE_BYTES else await asyncio.to_thread(work, *args)
