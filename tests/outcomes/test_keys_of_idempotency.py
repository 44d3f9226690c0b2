"""The promise: an idempotency key stands for one request. No other request gets its reply or its charge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import KeyReused
from kaas.wire import protocol
from tests.server.servers import STEPS, WIDTH, Server, Speaker, scaled
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

SMALL, LARGE = WIDTH, 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # no answer is kept once it was sent: as if the time of all had passed
    server = Server(tmp_path_factory.mktemp("server"), {"limits": {"answers_bytes": 1}})
    yield server
    server.close()


def values(width: int) -> np.ndarray[Any, Any]:
    return np.arange(width, dtype=np.float32)


def test_another_function_or_other_inputs_or_scalars_under_a_key_are_an_error_and_the_same_are_one_request(
    tmp_path: Path,
) -> None:
    server = Server(tmp_path)
    out, steps = kaas.Buffer("out", 1, "uint32"), kaas.Scalar("steps", "i64")
    spin = kaas.KTask([kaas.Kernel(STEPS, "spin", 1, 1, [kaas.Out(out), steps])], [out])
    keys = server.folder / "alice.keys"
    try:
        with kaas.Client(server.endpoint, keys=keys, patience_s=TIMEOUT_S) as client:
            for width in (SMALL, LARGE):
                scale, key = client.register(scaled(width=width)), f"key of {width}"
                results = [client.call(scale, {"x": values(width)}, key=key) for _ in range(2)]
                for result in results:
                    np.testing.assert_array_equal(result.result(TIMEOUT_S), 2 * values(width))
                with pytest.raises(KeyReused) as raised:
                    client.call(scale, {"x": values(width) + 1}, key=key).result(TIMEOUT_S)
                assert raised.value.key == key
                other = client.register(scaled(3.0, width=width))
                with pytest.raises(KeyReused):
                    client.call(other, {"x": values(width)}, key=key).result(TIMEOUT_S)
            function = client.register(spin)
            client.call(function, {}, scalars={"steps": 1}, key="spin").result(TIMEOUT_S)
            with pytest.raises(KeyReused):
                client.call(function, {}, scalars={"steps": 2}, key="spin").result(TIMEOUT_S)
            (stored,) = [client.register(scaled(3.0), name="stored")]
            client.call(stored, {"x": values(SMALL)}, key="stored", store={"y": "y"}).result(TIMEOUT_S)
        server.terminate()
        assert server.wait() == 0
        server = Server(tmp_path)  # answers of requests that have stored outputs are there again
        with kaas.Client(server.endpoint, keys=keys, patience_s=TIMEOUT_S) as client:
            stored = client.register(scaled(3.0), name="stored")
            with pytest.raises(KeyReused):
                client.call(stored, {"x": values(SMALL) + 1}, key="stored", store={"y": "y"}).result(TIMEOUT_S)
            client.call(stored, {"x": values(SMALL)}, key="stored", store={"y": "y"}).result(TIMEOUT_S)
    finally:
        server.close()


def flows(speaker: Speaker) -> tuple[int, int]:
    """Return the numbers of charged requests and of repeats without a charge."""
    told = speaker.ask("usage")["flows"]
    return sum(flow["requests"] for flow in told), sum(flow["repeats"] for flow in told)


def ran(speaker: Speaker, function: str, data: bytes) -> None:
    """Run a request under the key, and do not confirm its reply."""
    speaker.invoke(function, data, key="one key")
    assert isinstance(speaker.receive()[0], protocol.Result)
    session = speaker.session
    speaker.greet(None)  # as another program, so that the first one's waits are no more
    assert speaker.session != session


@pytest.mark.parametrize("name", ["alice"])
def test_a_client_that_reuses_a_key_after_its_reply_is_charged_each_time(server: Server, name: str) -> None:
    speaker = server.speaker(name)
    function = speaker.register(scaled()).function
    for number in range(1, 4):
        ran(speaker, function, (values(SMALL) + number).tobytes())
        assert flows(speaker) == (number, 0)
    ran(speaker, function, (values(SMALL) + number).tobytes())  # the same once more
    assert flows(speaker) == (4, 0)
    speaker.close()
