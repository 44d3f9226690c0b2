"""A model behind the Open Inference Protocol, version 2, over HTTP with JSON: any server that speaks it.

Source: the protocol's `v2/models/NAME` (metadata) and `v2/models/NAME/infer`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import local
from typing import Any
from urllib.parse import quote, urlsplit

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
MOST_BYTES = 1 << 30
"""The longest answer."""


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
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"--inference-protocol takes a URL, as http://host:8000, not {url!r}")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._url = parts.netloc, url
        self._path = f"{parts.path.rstrip('/')}/v2/models/{quote(model, safe='')}"
        self._here, self._threads = local(), ThreadPoolExecutor(CONNECTIONS, "kaas bench")
        told = self._ask("GET", self._path, None)
        try:
            self.inputs = tuple(_buffer(each) for each in told["inputs"])
        except (KeyError, TypeError, ValueError) as error:
            raise InferenceFailed(f"{url}: the metadata of model {model!r} cannot be read: {error!r}") from error

    def call(self, **inputs: Any) -> Future[Mapping[str, Any]]:
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
        return self._threads.submit(self._infer, json.dumps({"inputs": tensors}))

    def close(self) -> None:
        """Wait for the requests that are under way."""
        self._threads.shutdown()

    def _infer(self, body: str) -> Mapping[str, Any]:
        found = self._ask("POST", f"{self._path}/infer", body)
        if not isinstance(found.get("outputs"), list):  # as of a server that reports an error with status 200
            raise InferenceFailed(f"{self._url}{self._path}: the answer has no outputs: {json.dumps(found)[:200]}")
        return found

    def _ask(self, method: str, path: str, body: str | None) -> Mapping[str, Any]:
        connection: HTTPConnection | None = getattr(self._here, "connection", None)
        if connection is None:
            connection = self._here.connection = self._kind(self._host, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read(MOST_BYTES)
            if not response.isclosed():
                raise HTTPException(f"the answer is longer than {MOST_BYTES:,} bytes")
        except (OSError, HTTPException) as error:
            connection.close()
            raise Unreachable(
                f"{self._url} cannot be reached: {error}", address=self._url, reason=str(error)
            ) from error
        if response.status != 200:
            raise InferenceFailed(f"{self._url}{path}: {response.status} {text[:200].decode(errors='replace')}")
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InferenceFailed(f"{self._url}{path}: the answer is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise InferenceFailed(f"{self._url}{path}: the answer is no JSON object")
        return found


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
