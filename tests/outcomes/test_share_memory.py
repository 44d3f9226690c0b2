"""A client may keep so many bytes on a device: beyond them its own constants leave, and come back from the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

import kaas
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.processes

WORDS = 1 << 18  # 1 MiB
CODE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry first(.param .u64 x, .param .u64 y)
{ .reg .b64 %x, %y; .reg .b32 %v;
ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; ld.global.u32 %v, [%x]; st.global.u32 [%y], %v; ret; }"""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Path]:
    """A pool with one device. Gives the record of its policy."""
    record = tmp_path / "record"
    config = kaas.Config(devices=(kaas.Device("software", 64 << 20),), record=str(record))
    kaas.init(ray=False, config=config, name=f"memory-{tmp_path.name}-{id(config)}")
    yield record
    kaas.shutdown()


def function_of(number: int) -> kaas.Function:
    """Return a function that gives the first of its constants, which are all this number."""
    x, y = kaas.Buffer("x", WORDS, "uint32"), kaas.Buffer("y", 1, "uint32")
    kernel = kaas.Kernel(kaas.Library.from_ptx(CODE), "first", 1, 1, [kaas.In(x), kaas.Out(y)])
    return kaas.register(kaas.KTask([kernel], [y]), {"x": np.full(WORDS, number, np.uint32)})


class Calls:
    """Calls functions one after the other, in a pool with this record."""

    def __init__(self, record: Path) -> None:
        self.record, self.count = record, 0

    def __call__(self, functions: dict[int, kaas.Function], client: str, times: int) -> int:
        """Call the functions in turns, and return how often the constants of one were on the device."""
        kaas.stats(reset=True)
        for _ in range(times):
            for number, function in functions.items():
                assert int(function.options(client=client).call().result(TIMEOUT_S)[0]) == number
                self.count += 1
                until(self._settled)
        return sum(row.objects for row in kaas.stats().tiers if row.tier == "device" and row.client == client)

    def _settled(self) -> bool:
        """Return True if no request runs, and all that the policy has ordered to leave has left, or could not."""
        whole, _, _ = self.record.read_bytes().rpartition(b"\n")
        lines = [msgspec.json.decode(line) for line in whole.splitlines()[1:]]
        events = Counter(line["event"][0] for line in lines)
        decided = Counter(kind for line in lines for kind, _ in line["decisions"])
        return events["Ordered"] == decided["Evict"] and events["RequestDone"] == self.count


def test_a_share_keeps_no_more_on_a_device_than_its_bytes(pool: Path) -> None:
    calls = Calls(pool)
    small, others = ({number: function_of(number) for number in numbers} for numbers in ((0, 1), (2, 3)))
    calls(small, "small", 1)
    calls(others, "large", 1)
    assert calls(small, "small", 4) == 8, "there is room for all"
    kaas.set_share("small", kaas.Share(memory_bytes=3 * WORDS * 4 // 2))
    calls(small, "small", 1)
    assert calls(small, "small", 4) == 0, "each call brings its constants back, and those of the other one leave"
    assert calls(others, "large", 4) == 8, "what others have stays"
    (share,) = kaas.status().shares
    assert share.memory_bytes == 3 * WORDS * 4 // 2
    kaas.set_share("small", None)
    calls(small, "small", 1)
    assert calls(small, "small", 4) == 8


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "1 GiB"])
def test_bytes_that_are_no_number_of_them(wrong: object) -> None:
    with pytest.raises(kaas.errors.InvalidShare, match="memory_bytes is a whole number of bytes, or None"):
        kaas.Share(memory_bytes=wrong)  # type: ignore[arg-type]
