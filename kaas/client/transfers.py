"""Sends and receives large values in chunks. Bytes that the server has already are not sent."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from kaas.client.open_calls import TryAgain
from kaas.client.remote_calls import RemoteCalls
from kaas.errors import KaasError, UnknownFunction, UnknownObject, Unreachable
from kaas.futures import PendingReply
from kaas.wire import protocol

WINDOW = 4
"""Number of chunks, or of small values, that are under way at a time, unless the server takes fewer of a client."""

OnProgress = Callable[[int, int], Any]
"""Called with the number of bytes that have arrived, and the number of all bytes."""


@dataclass(frozen=True, slots=True)
class UploadContent:
    """Content that the server knows by its hash. kind, signature: as in `protocol.Upload`."""

    hash: str
    data: memoryview
    kind: str
    signature: bytes = b""

    @property
    def large(self) -> bool:
        """True if the content is sent in chunks."""
        return len(self.data) > protocol.CHUNK_BYTES

    @classmethod
    def value(cls, data: memoryview) -> UploadContent:
        """Return a value as the content of an upload."""
        return cls(hashlib.sha256(data).hexdigest(), data, "value")


class Transfers:
    """Requests and transfers over a client's connection.

    The methods raise TryAgain if the caller may repeat them from the start, and KaasError otherwise.
    """

    def __init__(self, calls: RemoteCalls) -> None:
        self._calls = calls
        self._window = WINDOW

    @contextmanager
    def _windows(self) -> Iterator[None]:
        """Send one request at a time from now on, if the server takes no more: else each repeat is refused."""
        try:
            yield
        except TryAgain as again:
            if again.retry_s:
                self._window = 1
            raise

    def reply(self, pending: PendingReply) -> Sequence[Any]:
        """Wait for a reply; return its header and its frames."""
        if not pending.ended:
            self._calls.wait(pending, None)
        if pending.error is not None:
            raise pending.error
        return pending.frames

    def ask(self, make: Callable[[int], Any], frames: Sequence[Any] = ()) -> Any:
        """Send a request, and return the header of its reply. make: returns the message for a number."""
        return self.reply(self._calls.ask(make, frames))[0]

    def ask_all(self, requests: Iterable[tuple[Callable[[int], Any], Sequence[Any]]]) -> None:
        """Send requests, some at a time, each with its frames, and wait for all replies."""
        in_flight: deque[PendingReply] = deque()
        with self._windows():
            for make, frames in requests:
                if len(in_flight) >= self._window:
                    self.reply(in_flight.popleft())
                in_flight.append(self._calls.ask(make, frames))
            for pending in in_flight:
                self.reply(pending)

    def removal(self, make: Callable[[int], Any]) -> Callable[[], None]:
        """Return a function that sends a Delete or Unregister, and may be repeated after TryAgain.

        A server that knows nothing of the name has removed it already, if an earlier attempt lost its connection.
        """
        lost = False

        def remove() -> None:
            nonlocal lost
            try:
                self.ask(make)
            except TryAgain as again:
                lost = lost or isinstance(again.error, Unreachable)
                raise
            except (UnknownFunction, UnknownObject):
                if not lost:
                    raise

        return remove

    def upload(self, contents: Sequence[UploadContent], progress: OnProgress | None) -> None:
        """Upload the contents that the server does not have yet, and report progress."""
        total, done = sum(len(content.data) for content in contents), 0
        for content in contents:

            def report(offset: int, before: int = done) -> None:
                if progress is not None:
                    progress(before + offset, total)

            with self._windows():
                self._upload(content, report)
            done += len(content.data)

    def _upload(self, content: UploadContent, report: Callable[[int], None]) -> None:
        size, data, digest = len(content.data), content.data, content.hash
        sent = stored = self.ask(
            lambda number: protocol.Upload(number, digest, size, content.kind, content.signature)
        ).offset
        report(stored)
        in_flight: deque[tuple[PendingReply, int]] = deque()
        while stored < size:
            while sent < size and len(in_flight) < self._window:
                begin, sent = sent, min(sent + protocol.CHUNK_BYTES, size)
                in_flight.append((self._chunk(digest, begin, data[begin:sent]), sent))
            pending, expected = in_flight.popleft()
            stored = self.reply(pending)[0].offset
            report(stored)
            if stored != expected:
                raise TryAgain(KaasError(f"the server has {stored} bytes of an upload, instead of {expected}"))

    def _chunk(self, digest: str, offset: int, part: memoryview) -> PendingReply:
        return self._calls.ask(lambda number: protocol.Chunk(number, digest, offset), (part,))

    def download(self, name: str, progress: OnProgress | None) -> tuple[protocol.Value, bytearray]:
        """Return the value of an object: the header of its first chunk, and its bytes."""
        with self._windows():
            return self._download(name, progress)

    def _download(self, name: str, progress: OnProgress | None) -> tuple[protocol.Value, bytearray]:
        header: protocol.Value
        header, first = self.reply(self._calls.ask(lambda number: protocol.Get(number, name)))
        data = bytearray(header.bytes)
        data[: len(first)] = first
        requested = arrived = len(first)
        in_flight: deque[PendingReply] = deque()
        while arrived < header.bytes:
            while requested < header.bytes and len(in_flight) < self._window:
                in_flight.append(self._get(name, requested))
                requested += protocol.CHUNK_BYTES
            if progress is not None:
                progress(arrived, header.bytes)
            value, part = self.reply(in_flight.popleft())
            if structs.replace(value, number=header.number) != header or not part:
                raise TryAgain(KaasError(f"object {name!r} was replaced while it was read"))
            data[arrived : arrived + len(part)] = part
            arrived += len(part)
        if progress is not None:
            progress(arrived, header.bytes)
        return header, data

    def _get(self, name: str, offset: int) -> PendingReply:
        return self._calls.ask(lambda number: protocol.Get(number, name, offset))
