"""Shares of a device, as users get them: promised parts of time and SMs hold, and change at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kaas
from kaas.errors import InvalidRequest, InvalidShare
from kaas.scheduling.recording import recorded, replay
from kaas.scheduling.simulation.simulator import simulate
from softgpu import Model, Takes
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

NAMES = ("f", "g", "h", "i")
SMS, BLOCKS = 128, 32
CODE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry {name}(.param .u64 y)
{{ .reg .b64 %y; ld.param.u64 %y, [y]; st.global.u32 [%y], {number}; ret; }}"""


def task_of(name: str) -> kaas.KTask:
    """Return a kTask whose one kernel fills a quarter of the device for 4 ms, and writes the name's number."""
    y = kaas.Buffer("y", 1, "uint32")
    library = kaas.Library.from_ptx(CODE.format(name=name, number=NAMES.index(name)))
    return kaas.KTask([kaas.Kernel(library, name, BLOCKS, 1, [kaas.Out(y)])], [y], name=name)


class Shared:
    """A pool with one device, and functions on it. record: of the pool's policy."""

    def __init__(self, record: Path) -> None:
        self.record = record
        self.functions = {name: kaas.register(task_of(name)) for name in NAMES}
        for name in NAMES:
            self.call(name)

    def call(self, name: str, **options: Any) -> None:
        function = self.functions[name]
        result = (function.options(**options) if options else function).call().result(TIMEOUT_S)
        assert int(result[0]) == NAMES.index(name)

    def counts(self, names: str, total: int, options: Mapping[str, Mapping[str, Any]] = {}) -> Counter[str]:
        """Let two callers of each function call it all the time, and count its requests among so many in all."""
        count: Counter[str] = Counter()
        lock = threading.Lock()
        failed: list[BaseException] = []

        def repeat(name: str) -> None:
            try:
                while not failed:
                    self.call(name, **options.get(name, {}))
                    with lock:
                        if count.total() >= total:
                            return
                        count[name] += 1
            except BaseException as error:  # noqa: BLE001 - raised below, in the test's thread
                failed.append(error)

        threads = [threading.Thread(target=repeat, args=(name,)) for name in names for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        if failed:
            raise failed[0]
        return count

    def dispatches(self, share: str) -> list[dict[str, Any]]:
        """Return the record's dispatches of requests of a share."""
        lines = map(msgspec.json.decode, self.record.read_bytes().splitlines())
        decided = [each for line in lines if "decisions" in line for each in line["decisions"]]
        found = [value for kind, value in decided if kind == "Dispatch"]
        return [each for each in found if each.get("share", "").endswith(share)]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    model = Model(sms=SMS, kernels={name: Takes(0.004) for name in NAMES})
    record = tmp_path / "record"
    config = kaas.Config(devices=(kaas.Device(model=model),), slots=4, policy="fcfs", record=str(record))
    kaas.init(config=config, ray=False, name=f"shares-{tmp_path.name}-{id(config)}")
    yield Shared(record)
    kaas.shutdown()
    assert replay(record).difference is None


@pytest.mark.parametrize("parts", [(0.1, 0.9), (0.3, 0.7)])
def test_two_functions_divide_the_time_as_promised(shared: Shared, parts: tuple[float, float]) -> None:
    for name, part in zip("fg", parts, strict=True):
        kaas.set_share(shared.functions[name], kaas.Share(quota=(part, 1)))
    counts = shared.counts("fg", 400)
    assert counts["f"] / 400 == pytest.approx(parts[0], abs=0.05)


def test_functions_with_a_quarter_of_the_sms_each_run_beside_each_other(shared: Shared) -> None:
    for name in NAMES:
        kaas.set_share(shared.functions[name], kaas.Share(sms=0.25))
    counts = shared.counts("fghi", 200)
    assert min(counts.values()) > 30
    for name in NAMES:
        sms = {each.get("sms") for each in shared.dispatches(shared.functions[name]._signatures[0].key)}
        assert sms == {SMS // 4}
    simulated = simulate(recorded(shared.record).scenario(2)).summary.per_share
    for name, each in zip(NAMES, kaas.status().shares, strict=True):
        assert each.device_s > 30 * 0.004
        assert each.sm_s == pytest.approx(each.device_s / 4)
        assert each.missed == 0, "nothing is promised"
        again = simulated[f"function {shared.functions[name]._signatures[0].key}"]
        assert again.sm_s == pytest.approx(again.device_s / 4), "also on two devices"


def test_a_client_has_its_share_of_the_time_whatever_others_send(shared: Shared) -> None:
    kaas.set_share("alice", kaas.Share(quota=(0.8, 0.9)))
    counts = shared.counts("fghi", 400, {name: {"client": "alice" if name == "f" else name} for name in NAMES})
    assert counts["f"] / 400 > 0.4, "of 8 callers two are hers, and others run beside each other in their time"


def test_a_share_changes_while_its_requests_run(shared: Shared) -> None:
    f, g = shared.functions["f"], shared.functions["g"]
    kaas.set_share(f, kaas.Share(quota=(0.2, 1)))
    kaas.set_share(g, kaas.Share(quota=(0.8, 1)))
    before = shared.counts("fg", 200)
    kaas.set_share(g, kaas.Share(quota=(0.2, 1)))
    kaas.set_share(f, kaas.Share(quota=(0.8, 1)))
    after = shared.counts("fg", 200)
    assert before["f"] < before["g"]
    assert after["f"] > after["g"]


def test_promises_beyond_a_device_are_refused_and_the_error_says_whose_they_are(shared: Shared) -> None:
    f, g = shared.functions["f"], shared.functions["g"]
    kaas.set_share(f, kaas.Share(0.6, (0.5, 1)))
    kaas.set_share("bob", kaas.Share(1.0, (0.3, 1)))
    with pytest.raises(InvalidShare, match=r"function 'f' has Share.*client 'bob' has Share.*function 'g'") as refused:
        kaas.set_share(g, kaas.Share(0.6, (0.5, 1)))
    assert refused.value.others == ("function 'f'", "client 'bob'")
    kaas.set_share(g, kaas.Share(0.4, (0.7, 1)))  # beside f
    kaas.set_share(f, None)
    kaas.set_share(g, kaas.Share(0.6, (0.5, 1)))
    shared.call("g")


def test_shares_given_with_a_function(shared: Shared) -> None:
    function = kaas.register(task_of("f"), share=kaas.Share(0.24, (0.5, 0.5)))
    (shown,) = kaas.status().shares
    assert (shown.of, shown.sms, shown.quota, shown.granted) == ("function 'f'", 0.24, (0.5, 0.5), ((0, 32),))
    assert "function 'f' │ 0.24 │ 0.5 to 0.5 │ 32 on device 0" in str(kaas.status()), "what was asked, and is granted"
    assert int(function.call().result(TIMEOUT_S)[0]) == 0
    assert [each.get("sms") for each in shared.dispatches(function._signatures[0].key)][-1] == SMS // 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sms": 0}, "sms is a part from 0.001 to 1, not 0"),
        ({"sms": 1.01}, "sms is a part"),
        ({"sms": True}, "sms is a part"),
        ({"sms": float("nan")}, "sms is a part"),
        ({"quota": 0.5}, "the least and the most part of the time"),
        ({"quota": (0.6, 0.5)}, "at most its most"),
        ({"quota": (-0.1, 0.5)}, "the least of quota is a part from 0 to 1"),
        ({"quota": (0, 0)}, "the most of quota is a part from 0.001 to 1"),
        ({"quota": (0.1, 0.2, 0.3)}, "the least and the most part of the time"),
    ],
)
def test_a_share_that_is_none(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidShare, match=said):
        kaas.Share(**arguments)


def test_only_functions_and_clients_have_shares(shared: Shared) -> None:
    for wrong in (task_of("f"), "", 7):
        with pytest.raises(InvalidRequest, match="a Function or the name of a client has a share"):
            kaas.set_share(wrong, kaas.Share())  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"a share is a kaas\.Share"):
        kaas.set_share(shared.functions["f"], 0.5)  # type: ignore[arg-type]
