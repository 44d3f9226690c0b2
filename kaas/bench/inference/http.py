"""Asks a server over HTTP with JSON: connections stay open, and answers have a largest size and a longest time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from select import select
from threading import local
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from kaas.errors import InferenceFailed, InvalidRequest, Unreachable

TIMEOUT_S = 60.0
"""The longest time without a byte of an answer."""
MOST_BYTES = 1 << 30
"""The longest answer."""


class JsonServer:
    """A server at a URL. Any number of threads may ask it; each has a connection of its own."""

    def __init__(self, url: str) -> None:
        """Take a URL, as http://host:8000; its path precedes those of the questions.

        Raises:
            InvalidRequest: no URL of HTTP, or one with a user, a query or a fragment.
        """
        parts = _parts(url)
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = parts.hostname or "", parts.port
        self._path = quote(parts.path.rstrip("/"), safe="/%")
        self._url, self._here = url, local()

    def ask(self, method: str, path: str, body: str | None = None) -> Mapping[str, Any]:
        """Return the JSON object that the server answers.

        Raises:
            Unreachable: no connection, or no whole answer. InferenceFailed: the answer is an error, or no JSON object.
        """
        connection: HTTPConnection | None = getattr(self._here, "connection", None)
        if connection is None:
            connection = self._here.connection = self._kind(self._host, self._port, timeout=TIMEOUT_S)
        try:
            response = _answer(connection, method, self._path + path, body)
            response.fp = _Bounded(response.fp)  # type: ignore[assignment]
            text = response.read()
        except (OSError, HTTPException, ValueError) as error:
            connection.close()
            message = f"{self._url} cannot be reached: {error}"
            raise Unreachable(message, address=self._url, reason=str(error)) from error
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
        InvalidRequest: no such URL, or one with more than a host, a port and a path. It does not repeat the URL, which
            may have a password.
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and not re.search(r"[\s\x00-\x1f]", url)
        parts.netloc.encode("idna"), parts.port, url.encode()
    except ValueError:
        known = False
    if not known:
        raise InvalidRequest("--inference-protocol takes a URL, as http://host:8000")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidRequest("--inference-protocol takes a URL without a user, a password, a query and a fragment")
    return parts


def _answer(connection: HTTPConnection, method: str, path: str, body: str | None) -> HTTPResponse:
    """Return the beginning of an answer. No request is sent twice: the first one may have run."""
    if connection.sock is not None and select([connection.sock], [], [], 0)[0]:
        connection.close()  # the server has closed it since its last answer; `request` connects again
    connection.request(method, path, body, {"Content-Type": "application/json"})
    return connection.getresponse()


class _Bounded:
    """A response's file, of which MOST_BYTES can be read: a server may give a wrong length, or none."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, MOST_BYTES

    def read(self, size: int | None = None) -> bytes:
        """Return the next bytes of the answer: at most `size`, or all that come if it is None or negative.

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
