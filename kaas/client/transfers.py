"""Large values to and from a server, in chunks: what it has already is not sent."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from kaas.client.open_calls import TryAgain
from kaas.client.remote_calls import RemoteCalls
from kaas.errors import KaasError
from kaas.futures import PendingReply
from kaas.wire import protocol

WINDOW = 4
"""Chunks on their way at once."""

Progress = Callable[[int, int], Any]
"""Called with the bytes that are there and with those of all."""


@dataclass(frozen=True, slots=True)
class UploadContent:
    """What is known to the server by its hash. kind, signature: as of `wire.Upload`."""

    hash: str
    data: memoryview
    kind: str
    signature: bytes = b""

    @classmethod
    def value(cls, data: memoryview) -> UploadContent:
        """Return a value as content of an upload."""
        return cls(hashlib.sha256(data).hexdigest(), data, "value")


class Transfers:
    """Each raises TryAgain if it is to be begun again, or KaasError."""

    def __init__(self, calls: RemoteCalls) -> None:
        self._calls = calls

    def answer(self, pending: PendingReply) -> Sequence[Any]:
        """The header of a question's answer, and its frames."""
        if not pending.ended:
            self._calls.wait(pending, None)
        if pending.error is not None:
            raise pending.error
        return pending.frames

    def ask(self, make: Callable[[int], Any], frames: Sequence[Any] = ()) -> Any:
        """The answer's header."""
        return self.answer(self._calls.ask(make, frames))[0]

    def upload(self, contents: Sequence[UploadContent], progress: Progress | None) -> None:
        """Upload what the server does not have yet, with reports of progress."""
        total, done = sum(len(content.data) for content in contents), 0
        for content in contents:

            def told(offset: int, before: int = done) -> None:
                if progress is not None:
                    progress(before + offset, total)

            self._upload(content, told)
            done += len(content.data)

    def _upload(self, content: UploadContent, told: Callable[[int], None]) -> None:
        size, data, digest = len(content.data), content.data, content.hash
        sent = there = self.ask(
            lambda number: protocol.Upload(number, digest, size, content.kind, content.signature)
        ).offset
        told(there)
        flying: deque[tuple[PendingReply, int]] = deque()
        while there < size:
            while sent < size and len(flying) < WINDOW:
                begin, sent = sent, min(sent + protocol.CHUNK_BYTES, size)
                flying.append((self._chunk(digest, begin, data[begin:sent]), sent))
            pending, expected = flying.popleft()
            there = self.answer(pending)[0].offset
            told(there)
            if there != expected:
                raise TryAgain(KaasError(f"an upload stands at {there} and not at {expected}"))

    def _chunk(self, digest: str, offset: int, part: memoryview) -> PendingReply:
        return self._calls.ask(lambda number: protocol.Chunk(number, digest, offset), (part,))

    def download(self, name: str, progress: Progress | None) -> tuple[protocol.Value, bytearray]:
        """A value by the name of its object."""
        header: protocol.Value
        header, first = self.answer(self._calls.ask(lambda number: protocol.Get(number, name)))
        data = bytearray(header.bytes)
        data[: len(first)] = first
        asked = there = len(first)
        flying: deque[PendingReply] = deque()
        while there < header.bytes:
            while asked < header.bytes and len(flying) < WINDOW:
                flying.append(self._get(name, asked))
                asked += protocol.CHUNK_BYTES
            if progress is not None:
                progress(there, header.bytes)
            value, part = self.answer(flying.popleft())
            if structs.replace(value, number=header.number) != header or not part:
                raise TryAgain(KaasError(f"object {name!r} was replaced while it was read"))
            data[there : there + len(part)] = part
            there += len(part)
        if progress is not None:
            progress(there, header.bytes)
        return header, data

    def _get(self, name: str, offset: int) -> PendingReply:
        return self._calls.ask(lambda number: protocol.Get(number, name, offset))
