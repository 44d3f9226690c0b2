"""A model behind the Open Inference Protocol, version 2, over HTTP with JSON: any server that speaks it.

Source: the protocol's `v2/models/NAME` (metadata) and `v2/models/NAME/infer`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, RemoteDisconnected
from queue import SimpleQueue
from socket import SHUT_RDWR, socket
from threading import Event, Semaphore, Thread, local
from time import monotonic
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

import numpy as np

from kaas.bench.service import LoadedService
from kaas.errors import InferenceFailed, InvalidRequest, Unreachable
from kaas.ktask.arguments import Buffer

DTYPES = {
    "BOOL": "bool",
    **{
        f"{sign}{bits}": f"{word}{bits}"
        for sign, word in (("INT", "int"), ("UINT", "uint"))
        for bits in (8, 16, 32, 64)
    },
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
"""The protocol's names of dtypes, but for strings and BF16, which JSON cannot carry as numbers."""
CONNECTIONS = 64
"""The most requests under way; further ones wait for a connection, and their latencies count the wait."""
TIMEOUT_S = 60.0
"""The longest time of a request, from its sending to the last byte of its answer."""
MOST_BYTES = 1 << 30
"""The longest answer."""
MOST_VALUES = 1 << 22
"""The most numbers of a request: JSON takes some 10 bytes for each."""
STALE_S = 0.05
"""A kept connection that ends so soon after a request was closed before the request, as servers do with idle ones."""
WATCH_S = 0.5
"""Seconds between two looks for requests that take too long."""


_STALE = (BrokenPipeError, ConnectionResetError, RemoteDisconnected)


class InferenceEndpoint:
    """One model at one server. Any number of threads may use it."""

    def __init__(self, url: str, model: str) -> None:
        """Ask the server for the model's inputs.

        Args:
            url: of the server, as http://host:8000; a path in it precedes `v2`.
            model: its name there.

        Raises:
            InvalidRequest: no URL of HTTP. Unreachable, InferenceFailed
        """
        parts = _parts(url)
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._url = parts.hostname or "", parts.port, url
        self._path = f"{quote(parts.path.rstrip('/'), safe='/%')}/v2/models/{quote(model, safe='')}"
        self._here = local()
        self._jobs: SimpleQueue[tuple[Future[Mapping[str, Any]], str] | None] = SimpleQueue()
        self._threads, self._idle = list[Thread](), Semaphore(0)
        self._until_s: dict[socket, float] = {}  # of requests under way
        self._closed = Event()
        Thread(target=self._watch, name="kaas bench watch", daemon=True).start()
        try:
            self.inputs = self._inputs(model)
        except BaseException:
            self.close()
            raise

    def _inputs(self, model: str) -> tuple[Buffer, ...]:
        told = self._ask("GET", self._path, None)
        try:
            inputs = tuple(_buffer(each) for each in told["inputs"])
        except (KeyError, TypeError, ValueError) as error:
            message = f"{self._url}: the metadata of model {model!r} cannot be read: {error!r}"
            raise InferenceFailed(message) from error
        values = sum(math.prod(buffer.shape) for buffer in inputs)
        if values > MOST_VALUES:
            raise InvalidRequest(
                f"{self._url}: {values:,} numbers are too many for JSON: the inputs of model {model!r}"
            )
        return inputs

    def call(self, /, **inputs: Any) -> Future[Mapping[str, Any]]:
        """Send a request, and return a future of the server's answer, decoded from JSON."""
        described = {buffer.name: buffer for buffer in self.inputs}
        tensors = [
            {
                "name": name,
                "shape": list(np.shape(value)),
                "datatype": _name_of(described[name].dtype),
                "data": np.ravel(value).tolist(),
            }
            for name, value in inputs.items()
        ]
        answer: Future[Mapping[str, Any]] = Future()
        self._jobs.put((answer, json.dumps({"inputs": tensors})))
        if not self._idle.acquire(blocking=False) and len(self._threads) < CONNECTIONS:
            # a daemon: one that waits for a connection cannot be ended, and would keep the program
            self._threads.append(Thread(target=self._work, name="kaas bench", daemon=True))
            self._threads[-1].start()
        return answer

    def close(self) -> None:
        """End the requests that are under way."""
        self._closed.set()
        for _ in self._threads:
            self._jobs.put(None)
        self._end(math.inf)

    def _work(self) -> None:
        """Send the requests of calls, one after the other."""
        while (job := self._jobs.get()) is not None:
            answer, body = job
            if self._closed.is_set():
                answer.cancel()
            elif answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(self._infer(body))
                except BaseException as error:  # noqa: BLE001 - the future has it
                    answer.set_exception(error)
            self._idle.release()

    def _watch(self) -> None:
        """End requests that take too long: a server that sends a byte now and then keeps the socket's own timeout."""
        while not self._closed.wait(WATCH_S):
            self._end(monotonic())

    def _end(self, now_s: float) -> None:
        for sock, until_s in tuple(self._until_s.items()):
            if until_s <= now_s:
                with suppress(OSError):  # the other side has closed it
                    sock.shutdown(SHUT_RDWR)

    def _infer(self, body: str) -> Mapping[str, Any]:
        found = self._ask("POST", f"{self._path}/infer", body)
        if not isinstance(found.get("outputs"), list):  # as of a server that reports an error with status 200
            raise InferenceFailed(f"{self._url}{self._path}: the answer has no outputs: {json.dumps(found)[:200]}")
        return found

    def _ask(self, method: str, path: str, body: str | None) -> Mapping[str, Any]:
        connection: HTTPConnection | None = getattr(self._here, "connection", None)
        if connection is None:
            connection = self._here.connection = self._kind(self._host, self._port, timeout=TIMEOUT_S)
        used = connection.sock is not None
        sock, until_s = None, monotonic() + TIMEOUT_S
        try:
            if connection.sock is None:
                connection.connect()
            sock = connection.sock  # http.client forgets it while it reads an answer without a length
            self._until_s[sock] = until_s
            try:
                response = _answer(connection, method, path, body)
            except _STALE:
                connection.close()
                if not used or monotonic() - until_s + TIMEOUT_S > STALE_S:
                    raise  # the request may have run: it is not sent again in silence
                del self._until_s[sock]
                connection.connect()
                self._until_s[sock := connection.sock] = until_s
                response = _answer(connection, method, path, body)
            response.fp = _Bounded(response.fp)  # type: ignore[assignment]
            text = response.read()
        except (OSError, HTTPException, ValueError) as error:
            connection.close()
            late = f"; the answer takes longer than {TIMEOUT_S:g} s" * (until_s <= monotonic())
            raise Unreachable(
                f"{self._url} cannot be reached: {error}{late}", address=self._url, reason=str(error)
            ) from error
        finally:
            self._until_s.pop(sock, None)  # type: ignore[arg-type]
        if self._closed.is_set() or until_s <= monotonic():  # an answer without a length ends with its connection
            message = f"{self._url}: the answer takes longer than {TIMEOUT_S:g} s, or the measurement has ended"
            raise Unreachable(message, address=self._url, reason="time-out")
        if response.status != 200:
            raise InferenceFailed(f"{self._url}{path}: {response.status} {text[:200].decode(errors='replace')}")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InferenceFailed(f"{self._url}{path}: the answer is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise InferenceFailed(f"{self._url}{path}: the answer is no JSON object")
        return found


def _parts(url: str) -> SplitResult:
    """Return the parts of a URL of HTTP.

    Raises:
        InvalidRequest
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and not re.search(r"[\s\x00-\x1f]", url)
        parts.netloc.encode("idna"), parts.port
    except ValueError:
        known = False
    if not known:
        raise InvalidRequest(f"--inference-protocol takes a URL, as http://host:8000, not {url!r}")
    return parts


def _answer(connection: HTTPConnection, method: str, path: str, body: str | None) -> HTTPResponse:
    connection.request(method, path, body, {"Content-Type": "application/json"})
    return connection.getresponse()


class _Bounded:
    """A response's file, of which MOST_BYTES can be read: a server may give a wrong length, or none."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, MOST_BYTES

    def read(self, size: int | None = None) -> bytes:
        """Return as the file does.

        Raises:
            HTTPException: the answer is too long.
        """
        most = self._left + 1 if size is None or size < 0 else min(size, self._left + 1)
        data: bytes = self._file.read(most)
        self._left -= len(data)
        if self._left < 0:
            raise HTTPException(f"the answer is longer than {MOST_BYTES:,} bytes")
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _buffer(tensor: Mapping[str, Any]) -> Buffer:
    """Return an input; a dimension that may vary has one element."""
    if tensor["datatype"] not in DTYPES:
        raise ValueError(f"input {tensor['name']!r} is of datatype {tensor['datatype']}")
    shape = tuple(1 if size < 0 else size for size in tensor["shape"])
    return Buffer(tensor["name"], shape, DTYPES[tensor["datatype"]])


def _name_of(dtype: str) -> str:
    return next(name for name, ours in DTYPES.items() if ours == dtype)


@contextmanager
def at_endpoint(url: str, model: str) -> Iterator[LoadedService]:
    """Give the model at a server of the Open Inference Protocol, which tells no figures of its own.

    Raises:
        InvalidRequest, Unreachable, InferenceFailed
    """
    endpoint = InferenceEndpoint(url, model)
    try:
        yield LoadedService({"": endpoint}, list, 0, {}, endpoint.inputs)
    finally:
        endpoint.close()
