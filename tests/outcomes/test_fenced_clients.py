"""The promise of isolation: "fence": a client's kernels find the client's own memory, wherever they look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import kaas
from tests.server.servers import DEVICE, WIDTH, Server, scaled
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

SECRET = 12345.0
PLACES = 32
KERNELS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry tell(.param .u64 out)
{
  .reg .b64 %o;
  ld.param.u64 %o, [out]; st.global.u64 [%o], %o;
  ret;
}
.visible .entry look(.param .u64 where, .param .u64 out)
{
  .reg .b64 %w, %o, %a, %i; .reg .b32 %t; .reg .f32 %v;
  ld.param.u64 %w, [where]; ld.param.u64 %o, [out];
  mov.u32 %t, %tid.x;
  mul.wide.u32 %i, %t, 8; add.u64 %a, %w, %i; ld.global.u64 %a, [%a];
  ld.global.f32 %v, [%a];
  mul.wide.u32 %i, %t, 4; add.u64 %o, %o, %i; st.global.f32 [%o], %v;
  ret;
}"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path, {"pool": {"devices": [DEVICE], "isolation": "fence"}})
    yield started
    started.close()


def client_of(server: Server, name: str) -> kaas.Client:
    return kaas.Client(server.endpoint, keys=server.folder / f"{name}.keys", patience_s=TIMEOUT_S)


@pytest.mark.parametrize("isolation", ["none", "fence"])
def test_an_operator_reads_whether_clients_share_memory(tmp_path: Path, isolation: str) -> None:
    started = Server(tmp_path, {"pool": {"devices": [DEVICE], "isolation": isolation}})
    started.close()
    shared = "kernels of all clients share the memory of each device" in started.errors.read_text()
    assert shared == (isolation == "none")


def test_clients_compute_and_no_address_leads_to_another_clients_memory(server: Server) -> None:
    code = kaas.Library.from_ptx(KERNELS)
    place, where = kaas.Buffer("place", 1, "uint64"), kaas.Buffer("where", PLACES, "uint64")
    seen = kaas.Buffer("seen", PLACES, "float32")
    tell = kaas.KTask([kaas.Kernel(code, "tell", 1, 1, [kaas.Out(place)])], [place])
    look = kaas.KTask([kaas.Kernel(code, "look", 1, PLACES, [kaas.In(where), kaas.Out(seen)])], [seen])
    hers = np.full(WIDTH, SECRET, np.float32)
    with client_of(server, "alice") as alice, client_of(server, "bob") as mallory:
        function, spy, scout = alice.register(scaled()), mallory.register(look), mallory.register(tell)
        for shift in (32, 34, 36, 38, 40):  # from the size of a window on
            np.testing.assert_array_equal(alice.call(function, {"x": hers}).result(TIMEOUT_S), 2 * hers)
            (own,) = mallory.call(scout, {}).result(TIMEOUT_S)
            around = int(own) // PLACES * PLACES + (np.arange(PLACES) - PLACES // 2 << shift)
            values = mallory.call(spy, {"where": around.astype(np.uint64)}).result(TIMEOUT_S)
            assert not {SECRET, 2 * SECRET} & {*values.tolist()}
