"""`kaas bench --inference-protocol` measures any server of the Open Inference Protocol."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import numpy as np
import pytest

from kaas.bench.inference.protocol import InferenceEndpoint, at_endpoint
from kaas.bench.loops import Arrivals, loops
from kaas.bench.payloads import payload
from kaas.bench.rows import rows
from kaas.errors import InferenceFailed, InvalidRequest, KaasError, Unreachable
from tests.timeouts import TIMEOUT_S, until

INPUTS = [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}, {"name": "n", "datatype": "INT64", "shape": [1]}]


Y = {"name": "y", "datatype": "FP32"}
DEEP = b"[" * 100_000


class Doubling(BaseHTTPRequestHandler):
    """A server with the model "double", of y = 2 x, one without metadata, and one that answers an error with 200."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if "dripping" in self.path:
            self.hold()
            return
        names = ("double", "failing", "closing", "slow", "rude", "chunked", "broken")
        described = {name: {"inputs": INPUTS} for name in names} | {"odd": {"name": "odd"}, "deep": DEEP}
        described["large"] = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1 << 31]}]}
        described["twice"] = {"inputs": [*INPUTS, INPUTS[0]]}
        described["named"] = {"inputs": [{"name": "self", "datatype": "FP32", "shape": [1]}]}
        self.answer(described.get(self.path.rpartition("/v2/models/")[2]))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "failing" in self.path:
            self.answer({"error": "out of memory", "outputs": []})
            return
        if "rude" in self.path:
            self.close_connection = True
            return
        if "named" in self.path:
            self.answer({"outputs": [{**Y, "shape": [1], "data": [1]}]})
            return
        if "broken" in self.path:
            self.answer({"outputs": self.server.outputs})  # type: ignore[attr-defined]
            return
        if "chunked" in self.path:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"-5\r\nhello")
            self.close_connection = True
            return
        if "slow" in self.path:
            self.hold()
            return
        (x,) = (each for each in asked["inputs"] if each["name"] == "x")
        self.close_connection = "closing" in self.path  # without a word, as of an idle connection
        self.answer({"outputs": [{**x, "name": "y", "data": [2 * value for value in x["data"]]}]})

    def hold(self) -> None:
        """Begin an answer without an end."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b" ")
        self.rfile.read(1)  # until the client ends the connection

    def answer(self, found: Any) -> None:
        body = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def http() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Doubling) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def url(http: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{http.server_address[1]}"


def test_the_servers_numbers_come_back(url: str) -> None:
    with at_endpoint(url, "double") as service:
        inputs = payload(service.inputs)
        assert {name: (array.shape, array.dtype) for name, array in inputs.items()} == {
            "x": ((1, 3), np.float32),
            "n": ((1,), np.int64),
        }
        (answer,) = service.functions[""].call(**inputs).result()["outputs"]
        np.testing.assert_allclose(answer["data"], 2 * inputs["x"].ravel())


def test_a_load_on_a_server_has_latencies_and_no_stages(url: str) -> None:
    with at_endpoint(url, "double") as service:
        measured = loops("2", "50", None, Arrivals.CONSTANT)
        found = list(rows(service, payload(service.inputs), measured, 0.1, 0.3))
    assert [row["load"] for row in found] == ["concurrency 2", "rate 50/s"]
    assert [row["rate_asked_per_s"] for row in found] == [None, 50.0]
    for row in found:
        assert row["requests"] > 0
        assert (row["errors"], row["lost"], row["stages_ms"]) == ({}, 0, {})


def test_a_server_may_close_idle_connections(url: str) -> None:
    with at_endpoint(url, "closing") as service:
        inputs = payload(service.inputs)
        for _ in range(5):
            assert service.functions[""].call(**inputs).result(TIMEOUT_S)["outputs"]
            until(lambda: not any("process_request" in each.name for each in threading.enumerate()))


def test_a_server_that_hangs_up_on_a_request_has_failed_it(url: str) -> None:
    """The request may have run: it is not sent again in silence."""
    with at_endpoint(url, "rude") as service:
        inputs = payload(service.inputs)
        results = [service.functions[""].call(**inputs) for _ in range(4)]
        assert sorted(type(each.exception(TIMEOUT_S)).__name__ for each in results) == ["Unreachable"] * 4


def test_any_input_has_any_name_and_any_path_is_asked(url: str) -> None:
    with at_endpoint(f"{url}/ä", "named") as service:
        assert service.functions[""].call(**payload(service.inputs)).result(TIMEOUT_S)["outputs"][0]["data"] == [1]


@pytest.mark.parametrize(
    ("output", "whole"),
    [
        ({**Y, "shape": [2, 2], "data": [1, 2, 3, 4]}, True),
        ({**Y, "shape": [2, 2], "data": [[1, 2], [3, 4]]}, True),
        ({**Y, "shape": [0, 3], "data": []}, True),
        ({**Y, "shape": [], "data": [1]}, True),
        (None, False),
        ({}, False),
        ({"name": "y", "shape": [1], "data": [1]}, False),
        ({**Y, "shape": [1000, 1000], "data": []}, False),
        ({**Y, "shape": [2, 2], "data": [[1, 2], 3]}, False),
        ({**Y, "shape": [2, 2], "data": [[1, 2, 3], [4]]}, False),
        ({**Y, "shape": [3], "data": [[1, [2]], None, {}]}, False),
        ({**Y, "shape": [2], "data": [None, None]}, False),
        ({**Y, "shape": [10**4000] * 2000, "data": [1]}, False),  # whose product takes minutes
        ({**Y, "shape": [10**12] * 2000, "data": [1]}, False),
        ({**Y, "shape": [10**12, 0], "data": []}, True),
        ({**Y, "shape": [2, -2], "data": []}, False),
        ({**Y, "shape": "12", "data": [1, 2]}, False),
        ({**Y, "shape": [1], "data": "1"}, False),
        ({**Y, "name": 5, "shape": [1], "data": [1]}, False),
    ],
)
def test_an_output_that_is_not_whole_is_no_result(
    http: ThreadingHTTPServer, url: str, output: Any, whole: bool
) -> None:
    http.outputs = [output]  # type: ignore[attr-defined]
    with at_endpoint(url, "broken") as service:
        error = service.functions[""].call(**payload(service.inputs)).exception(TIMEOUT_S)
    assert (error is None) == whole
    assert whole or isinstance(error, InferenceFailed)


def test_lengths_of_chunks_are_checked(url: str) -> None:
    with at_endpoint(url, "chunked") as service, pytest.raises(Unreachable):
        service.functions[""].call(**payload(service.inputs)).result(TIMEOUT_S)


def test_the_end_of_a_measurement_does_not_wait_for_an_answer_without_an_end(url: str) -> None:
    with at_endpoint(url, "slow") as service:
        under_way = service.functions[""].call(**payload(service.inputs))
        until(under_way.running)
    assert not under_way.done()


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("missing", InferenceFailed),
        ("odd", InferenceFailed),
        ("deep", InferenceFailed),
        ("twice", InferenceFailed),
        ("large", InvalidRequest),
    ],
)
def test_a_server_that_breaks_the_protocol_is_named(url: str, model: str, error: type[KaasError]) -> None:
    with pytest.raises(error, match=url):
        InferenceEndpoint(url, model)


def test_no_server_and_no_url() -> None:
    with pytest.raises(Unreachable, match="cannot be reached"):
        InferenceEndpoint("http://127.0.0.1:1", "double")
    wrong = (
        "127.0.0.1:8000",
        "tcp://127.0.0.1:8000",
        "http://",
        "http://[::1",
        "http://a:b",
        "http://x y/",
        "http://a..b",
        "http://host/\udcff",
    )
    for url in wrong:
        with pytest.raises(InvalidRequest, match="takes a URL"):
            InferenceEndpoint(url, "double")


@pytest.mark.parametrize(
    "url", ["http://ann:s3cret@host", "http://host/?token=s3cret", "http://host/#s3cret", "ftp://ann:s3cret@host"]
)
def test_a_url_with_a_password_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidRequest, match="takes a URL") as refused:
        InferenceEndpoint(url, "double")
    assert "s3cret" not in str(refused.value)


def test_a_service_that_dies_leaves_the_rows_that_were_measured(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its last figures cannot be read; the loop before has its row all the same."""

    def gone() -> Any:
        raise Unreachable("the server has ended", address=url, reason="")

    with at_endpoint(url, "double") as service:
        dead = dataclasses.replace(service, stats=gone)
        (row,) = rows(dead, payload(service.inputs), loops("1", None, None, Arrivals.CONSTANT), 0.1, 0.3)
    assert (row["requests"] > 0, row["stages_ms"]) == (True, {})
    assert "no stages, hits and misses: the server has ended" in capsys.readouterr().err


def test_a_description_without_an_end_is_no_model(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kaas.bench.inference.protocol.METADATA_S", 0.2)
    with pytest.raises(Unreachable, match="has not described the model"):
        at_endpoint(url, "dripping").__enter__()
