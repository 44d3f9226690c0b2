"""The code of an encoded kTask, for compilers that run ahead of it."""

from __future__ import annotations

import msgspec

import kaas
from kaas.code.launched import launched

PTX = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out) { ret; }\n"


def task() -> kaas.KTask:
    out, library = kaas.Buffer("out", 1, "uint32"), kaas.Library.from_ptx(PTX)
    return kaas.KTask([kaas.Kernel(library, "k", 1, block, [kaas.Out(out)]) for block in (32, 64, 32)], [out])


def test_each_launch_counts_once() -> None:
    ((images, kernels),) = launched(task().to_msgpack())
    assert [image.data for image in images] == [PTX.encode()]
    assert kernels == (("k", (32, 1, 1)), ("k", (64, 1, 1)))


def test_names_of_providers_stand_where_their_code_would() -> None:
    out = kaas.Buffer("out", 1, "uint32")
    library = kaas.Library.provided("kaas", "anything", "1") | kaas.Library.from_ptx(PTX)
    named = kaas.KTask([kaas.Kernel(library, "k", 1, 32, [kaas.Out(out)])], [out])
    ((images, kernels),) = launched(named.to_msgpack())
    assert ([image.kind for image in images], kernels) == (["provided", "ptx"], (("k", (32, 1, 1)),))


def test_a_ktask_that_is_written_in_another_way_is_left_to_the_executor() -> None:
    content = msgspec.msgpack.decode(task().to_msgpack())
    content["kernels"][0]["kernel"]["block"] = 32
    assert launched(msgspec.msgpack.encode(content)) == []
    assert launched(b"\xc1") == []
