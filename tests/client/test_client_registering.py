"""A client uploads only the content that the server lacks, and resumes an interrupted upload."""

from __future__ import annotations

import numpy as np
import pytest

import kaas
from kaas.client.transfers import WINDOW
from kaas.errors import InvalidRequest
from kaas.wire import protocol
from tests.client.client_setting import LIBRARY, ONES, TASK, WIDTH, W, X, Y, client, server
from tests.client.fake_server import FakeServer
from tests.timeouts import TIMEOUT_S

__all__ = ["client", "server"]

WEIGHED = kaas.KTask([kaas.Kernel(LIBRARY, "f", 1, 1, [kaas.In(X), kaas.In(W), kaas.Out(Y)])], [Y])


# --- registering and values


def test_only_content_that_the_server_lacks_is_sent(server: FakeServer, client: kaas.Client) -> None:
    told: list[tuple[int, int]] = []
    weights = np.arange(WIDTH, dtype=np.float32)
    client.register(WEIGHED, {"w": weights}, progress=lambda *there: told.append(there))
    assert told[-1] == (told[-1][1],) * 2
    chunks, puts = len(server.of(protocol.Chunk)), len(server.of(protocol.Put))
    assert (chunks, puts) == (1, 1)
    function = client.register(WEIGHED, {"w": weights})
    assert (len(server.of(protocol.Chunk)), len(server.of(protocol.Put))) == (chunks, puts)
    assert (function.call(ONES).result(TIMEOUT_S) == 2).all()
    other = client.put("other", weights)
    client.register(WEIGHED, {"w": other})
    assert server.of(protocol.Register)[-1].constants == {"w": "other"}
    with pytest.raises(InvalidRequest):
        client.register(WEIGHED, {"w": ONES[:3]})


def test_small_constants_do_not_wait_for_each_other(server: FakeServer, client: kaas.Client) -> None:
    """A model has hundreds: with a reply for each before the next, a distant server would take minutes."""
    weights = [kaas.Buffer(f"w{number}", WIDTH, "float32") for number in range(2 * WINDOW)]
    read = [kaas.In(X), *map(kaas.In, weights), kaas.Out(Y)]
    task = kaas.KTask([kaas.Kernel(LIBRARY, "f", 1, 1, read)], [Y])
    server.puts_together = WINDOW
    client.register(task, {each.name: ONES * number for number, each in enumerate(weights)})
    assert sorted(data for _, data in server.objects.values()) == sorted(
        (ONES * number).tobytes() for number in range(len(weights))
    )


def test_a_signed_task_is_sent_with_its_signature(server: FakeServer) -> None:
    with kaas.Client(server.address, signatures={TASK.key: b"signed"}) as client:
        client.register(TASK)
    assert [register.signature for register in server.of(protocol.Register)] == [b"signed"]


def test_a_value_that_is_replaced_while_it_is_read_is_not_mixed(server: FakeServer, client: kaas.Client) -> None:
    before, after = (np.full(4 * protocol.CHUNK_BYTES // 8, number, np.float64) for number in (1, 2))
    client.put("values", before)
    server.putting = [after.tobytes()]
    assert (client.get("values") == after).all()


def test_an_interrupted_upload_resumes_at_its_offset(server: FakeServer, client: kaas.Client) -> None:
    values = np.random.default_rng(0).random(6 * protocol.CHUNK_BYTES // 8)
    server.breaks_after = 3 * protocol.CHUNK_BYTES
    told: list[int] = []
    client.put("values", values, progress=lambda there, _: told.append(there))
    assert len(server.of(protocol.Upload)) == 2
    assert told[-1] == values.nbytes
    assert (client.get("values") == values).all()
    offsets = [chunk.offset for chunk in server.of(protocol.Chunk)]
    assert offsets.count(0) == offsets.count(protocol.CHUNK_BYTES) == 1


def test_a_model_is_called_by_the_shapes_of_its_inputs(server: FakeServer, client: kaas.Client) -> None:
    def variant(rows: int) -> kaas.Variant:
        x, y = kaas.Buffer("x", (rows, WIDTH), "float32"), kaas.Buffer("y", (rows, WIDTH), "float32")
        task = kaas.KTask([kaas.Kernel(LIBRARY, "f", 1, 1, [kaas.In(x), kaas.In(W), kaas.Out(y)])], [y])
        return kaas.Variant(task, (x, kaas.Buffer("unread", rows, "float32")))

    model = kaas.CompiledModel("m", [variant(1), variant(2)], {"w": ONES})
    function = client.register(model)
    assert len(server.of(protocol.Put)) == 1
    for rows in (1, 2):
        inputs = {"x": np.ones((rows, WIDTH), np.float32), "unread": np.ones(rows, np.float32)}
        assert client.call(function, inputs).result(TIMEOUT_S).shape == (rows, WIDTH)
    assert {invoke.function for invoke in server.of(protocol.Invoke)} == set(function.keys)
    there = client.put("there", np.ones((2, WIDTH), np.float32))
    assert function.variant(x=(2, WIDTH)).call(there, np.ones(2, np.float32)).result(TIMEOUT_S).shape == (2, WIDTH)
    with pytest.raises(InvalidRequest, match="by name"):
        client.call(function, [there])  # type: ignore[arg-type]
