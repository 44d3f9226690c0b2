"""A model behind the Open Inference Protocol, version 2, over HTTP with JSON: any server that speaks it.

Source: the protocol's `v2/models/NAME` (metadata) and `v2/models/NAME/infer`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import chain
from queue import Empty, SimpleQueue
from threading import Semaphore, Thread
from typing import Any
from urllib.parse import quote

import numpy as np

from kaas.bench.inference.http import JsonServer
from kaas.bench.service import LoadedService
from kaas.errors import InferenceFailed, InvalidGraph, InvalidRequest, Unreachable
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
MOST_ELEMENTS = 1 << 40
"""The most elements of an output, and the largest size of a dimension."""
METADATA_S = 60.0
"""Longest wait for a model's description."""
MOST_VALUES = 1 << 22
"""The most numbers of a request: JSON takes some 10 bytes for each."""


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
        self._server, self._url = JsonServer(url), url
        self._path = f"/v2/models/{quote(model, safe='')}"
        self.inputs = self._inputs(model)
        self._jobs: SimpleQueue[tuple[Future[Mapping[str, Any]], str] | None] = SimpleQueue()
        self._threads, self._idle = list[Thread](), Semaphore(0)

    def _inputs(self, model: str) -> tuple[Buffer, ...]:
        told = self._metadata()
        try:
            inputs = tuple(_buffer(each) for each in told["inputs"])
            if len({buffer.name for buffer in inputs}) < len(inputs):
                raise ValueError("two inputs have one name")
        except (KeyError, TypeError, ValueError, InvalidGraph) as error:
            message = f"{self._url}: the metadata of model {model!r} cannot be read: {error!r}"
            raise InferenceFailed(message) from error
        values = sum(math.prod(buffer.shape) for buffer in inputs)
        if values > MOST_VALUES:
            raise InvalidRequest(
                f"{self._url}: {values:,} numbers are too many for JSON: the inputs of model {model!r}"
            )
        return inputs

    def _metadata(self) -> Any:
        """Ask in a thread: a server may drip an answer without end, each part of which comes in time."""
        answer: Future[Any] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._server.ask("GET", self._path))
            except Exception as error:  # noqa: BLE001 - the caller gets it
                answer.set_exception(error)

        Thread(target=ask, name="kaas bench metadata", daemon=True).start()
        try:
            return answer.result(METADATA_S)
        except TimeoutError as error:
            why = f"it has not described the model in {METADATA_S:g} s"
            raise Unreachable(f"{self._url}: {why}", address=self._url, reason=why) from error

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
            # a daemon: one that waits for a server would keep the program from its end
            self._threads.append(Thread(target=self._work, name="kaas bench", daemon=True))
            self._threads[-1].start()
        return answer

    def close(self) -> None:
        """Send no more requests. Nothing waits for those that are under way."""
        with suppress(Empty):
            while (job := self._jobs.get_nowait()) is not None:
                job[0].cancel()
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        """Send the requests of calls, one after the other."""
        while (job := self._jobs.get()) is not None:
            answer, body = job
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(self._infer(body))
                except BaseException as error:  # noqa: BLE001 - the future has it
                    answer.set_exception(error)
            self._idle.release()

    def _infer(self, body: str) -> Mapping[str, Any]:
        found = self._server.ask("POST", f"{self._path}/infer", body)
        outputs = found.get("outputs")
        if found.get("error") or not isinstance(outputs, list) or not outputs:
            # as of a server that reports an error with status 200
            raise InferenceFailed(f"{self._url}{self._path}: the answer has no outputs: {json.dumps(found)[:200]}")
        try:
            for output in outputs:
                _check(output)
        except (KeyError, TypeError, ValueError) as error:
            raise InferenceFailed(f"{self._url}{self._path}: an output cannot be read: {error!r:.200}") from error
        return found


def _buffer(tensor: Mapping[str, Any]) -> Buffer:
    """Return an input; a dimension that may vary has one element."""
    if tensor["datatype"] not in DTYPES:
        raise ValueError(f"input {tensor['name']!r} is of datatype {tensor['datatype']}")
    shape = tuple(1 if size < 0 else size for size in tensor["shape"])
    return Buffer(tensor["name"], shape, DTYPES[tensor["datatype"]])


def _check(output: Mapping[str, Any]) -> None:
    """Check that an output is whole: its data, flat or in lists of lists, are as many as its shape says.

    Raises:
        KeyError, TypeError, ValueError
    """
    shape, data = output["shape"], output["data"]
    if not isinstance(output["name"], str) or not isinstance(output["datatype"], str) or not isinstance(data, list):
        raise TypeError("an output has a name, a datatype, and a list of data")
    if any(type(size) is not int or not 0 <= size <= MOST_ELEMENTS for size in shape):
        raise ValueError(f"a size of an output is a number from 0 to {MOST_ELEMENTS:,}")
    if data and isinstance(data[0], list):
        for size in shape[1:]:
            if any(not isinstance(row, list) or len(row) != size for row in data):
                raise ValueError("an output's lists of lists are not of its shape")
            data = list(chain.from_iterable(data))
    if any(not isinstance(element, int | float | str) for element in data):
        raise TypeError("an output's elements are numbers, truth values or texts")
    count = 1
    for size in shape:  # `math.prod` of many large sizes takes minutes
        count = min(count * size, MOST_ELEMENTS)
    if len(data) != count:
        raise ValueError(f"{len(data)} elements are not of the shape {shape!r:.80}")


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
        yield LoadedService({"": endpoint}, list, (), {}, endpoint.inputs)
    finally:
        endpoint.close()
