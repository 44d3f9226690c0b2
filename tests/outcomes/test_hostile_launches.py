"""A client that chooses launches to reach another client's data gets none of them run, and the other's data stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import ArgumentMismatch, NotAllowed
from tests.outcomes.test_allowed_code import OTHER_LAUNCHES
from tests.server.conftest import Serve
from tests.server.servers import STEPS, WIDTH, Server, scaled
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

CANARY = np.full(WIDTH, 7, np.float32)
NUMBERS = {"a literal": kaas.u64(1 << 40), "a signed one": kaas.i64(1 << 40), "a scalar": kaas.Scalar("address", "u64")}


def client(server: Server, name: str) -> kaas.Client:
    return kaas.Client(server.endpoint, keys=server.key_of(name), patience_s=TIMEOUT_S)


def reads(source: Any) -> kaas.KTask:
    """An honest kernel that gets a number as the address to read."""
    y = kaas.Buffer("y", WIDTH, "float32")
    return kaas.KTask([kaas.Kernel(STEPS, "scale", 4, 256, [source, kaas.Out(y), kaas.f32(1), kaas.u32(WIDTH)])], [y])


def attacked(server: Server, tasks: list[kaas.KTask], error: type[kaas.KaasError]) -> None:
    """Each of these is refused to mallory, while bob's constant lies on the device, in an executor that goes on."""
    with client(server, "alice") as mallory, client(server, "bob") as bob, client(server, "boss") as boss:
        function = bob.register(scaled(), {"x": CANARY})
        assert (function.call().result() == 2 * CANARY).all()
        executor = boss.status()["devices"][0]["pid"]
        for task in tasks:
            with pytest.raises(error):
                mallory.call(mallory.register(task), {}, scalars={"address": 1 << 40} if task.scalars else {}).result()
        assert (function.call().result() == 2 * CANARY).all()
        assert boss.status()["devices"][0]["pid"] == executor


def test_no_number_is_an_address_with_a_listed_library(serve: Serve) -> None:
    server = serve({"code": {"libraries": [STEPS.hash]}, "administrators": ["boss"]})
    attacked(server, [reads(source) for source in NUMBERS.values()], ArgumentMismatch)


def test_no_other_launch_of_a_listed_ktask_runs(serve: Serve) -> None:
    server = serve({"code": {"hashes": [scaled().key]}, "administrators": ["boss"]})
    attacked(server, [*OTHER_LAUNCHES.values(), *(reads(source) for source in NUMBERS.values())], NotAllowed)
