"""The worker of an eTask measures its calls."""

from __future__ import annotations

import pickle

import pytest

from kaas.config import Device
from kaas.scheduling.decisions import StartWorker
from kaas.scheduling.events import WorkerKind
from kaas.wire import specs
from kaas.wire.etask_values import packed
from kaas.worker import etask_actor
from kaas.worker.epochs import WorkerPost
from kaas.worker.etask_actor import ETaskActor

NOW_S = [0.0]
POST = WorkerPost(StartWorker(1, WorkerKind.ETASK, 0, "a", "f"), None)


class Slow:
    """Takes three seconds to make, and one to call."""

    def __init__(self) -> None:
        NOW_S[0] += 3.0

    def __call__(self) -> int:
        NOW_S[0] += 1.0
        return 5


def test_the_making_of_the_instance_is_a_part_of_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etask_actor, "perf_counter", lambda: NOW_S[0])
    actor = ETaskActor(Device("software"), pickle.dumps((Slow, (), {})), (), POST)
    call = specs.encode(specs.ETaskCall("key", "a", None, 0, True, "", packed(((), {})), "", 0))
    replies = [specs.decode_etask_reply(actor.call(call, ())[1]) for _ in range(2)]
    assert [(reply.seconds, reply.load_s) for reply in replies] == [(4.0, 3.0), (1.0, 0.0)]
