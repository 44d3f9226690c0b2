"""Times that a pool has measured are known to the next pool: by its store, or by a file of its statistics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

import kaas
from kaas.scheduling.events import FunctionKnown, RequestArrived
from kaas.scheduling.recording import read, replay
from tests.api.conftest import add_task, numbers
from tests.api.without_ray import another, runtime
from tests.timeouts import TIMEOUT_S

__all__ = ["another", "runtime"]

pytestmark = pytest.mark.processes

CALLS = 3


def played(record: Path) -> None:
    """Call a function of the pool a few times, and end the pool."""
    function = kaas.register(add_task(), {"a": numbers(seed=1)})
    for _ in range(CALLS):
        sums = function.call(b=numbers()).result(TIMEOUT_S)
        np.testing.assert_array_equal(sums, numbers(seed=1) + numbers())
    (profile,) = kaas.stats().profiles
    assert profile.function == add_task().label
    record.with_suffix(".json").write_bytes(msgspec.json.encode(kaas.stats().profiles))
    kaas.shutdown()


def known(record: Path) -> list[FunctionKnown | RequestArrived]:
    events = [entry[0] for _, entry in read(record) if isinstance(entry, tuple)]
    return [event for event in events if isinstance(event, FunctionKnown | RequestArrived)]


def test_the_next_pool_knows_what_the_last_one_measured(another: Callable[..., bool], tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{name}.jsonl" for name in ("first", "second", "third"))
    store, file = str(tmp_path / "store"), str(first.with_suffix(".json"))
    for record, options in ((first, {"store": store}), (second, {"store": store}), (third, {"profiles": file})):
        another(config=kaas.Config(policy="sjf", record=str(record), **options))  # type: ignore[arg-type]
        played(record)
    assert [type(event) for event in known(first)] == [RequestArrived] * CALLS
    (saved,) = msgspec.json.decode(first.with_suffix(".json").read_bytes(), type=list[kaas.FunctionProfile])
    for record in (second, third):
        told, arrived = known(record)[:2]
        assert isinstance(told, FunctionKnown)
        assert told.function == arrived.function
        assert (told.kind, told.observations, told.run_s) == ("software", CALLS, saved.run_s)
        assert (told.nbytes, told.load_s) == (numbers().nbytes, saved.load_s)
        assert told.load_s > 0
        assert replay(record).difference is None
