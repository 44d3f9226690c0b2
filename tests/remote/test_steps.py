"""The server's cTasks around a client's kTask."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from kaas.errors import InvalidConfig
from kaas.remote import tasks, wire
from kaas.remote.steps import Steps
from tests.remote.servers import WIDTH, Server, Speaker, scaled

STEPS = {name: f"tests.remote.steps:{name}" for name in ("from_text", "total", "fail", "end", "stall", "halves")}
TEXT = b"1 " * WIDTH


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"), {"steps": STEPS, "step_processes": 1})
    yield server
    server.close()


@pytest.fixture
def alice(server: Server) -> Iterator[Speaker]:
    speaker = server.speaker("alice")
    speaker.register(scaled())
    yield speaker
    speaker.close()


def chain(speaker: Speaker, before: str = "", after: str = "") -> None:
    message = wire.Register(speaker.number(), "chain", before=before, after=after)
    speaker.told(wire.Registered, message, tasks.encode_task(scaled()))


def ask(speaker: Speaker, name: str = "text", value: bytes = TEXT) -> tuple[wire.FromServer, list[bytes]]:
    number = speaker.number()
    speaker.send(wire.Invoke(number, "chain", {name: wire.Input(frame=1)}), value)
    answer = speaker.receive()
    speaker.received([number])
    return answer


def failure(speaker: Speaker, name: str = "text", value: bytes = TEXT) -> wire.Failure:
    answer, _ = ask(speaker, name, value)
    assert isinstance(answer, wire.Failure), answer
    return answer


def test_steps_stand_around_a_task(alice: Speaker) -> None:
    chain(alice, "from_text", "total")
    answer, frames = ask(alice)
    assert isinstance(answer, wire.Result)
    assert answer.outputs == ("total",)
    assert np.frombuffer(frames[0], np.float32) == [2 * WIDTH]


def test_one_of_both_will_do(alice: Speaker) -> None:
    chain(alice, "from_text")
    answer, frames = ask(alice)
    assert isinstance(answer, wire.Result)
    assert answer.outputs == ("y",)
    assert (np.frombuffer(frames[0], np.float32) == 2).all()
    chain(alice, "", "total")
    _, frames = ask(alice, "x", np.ones(WIDTH, np.float32).tobytes())
    assert np.frombuffer(frames[0], np.float32) == [2 * WIDTH]


def test_what_a_step_raises_is_told(alice: Speaker) -> None:
    chain(alice, "fail")
    told = failure(alice)
    assert (told.error, told.fields) == ("StepFailed", {"step": "fail", "error_type": "LookupError"})
    chain(alice, "", "fail")
    assert failure(alice, "x", np.ones(WIDTH, np.float32).tobytes()).error == "StepFailed"


def test_a_step_that_ends_its_process_ends_no_other(alice: Speaker) -> None:
    chain(alice, "end")
    assert failure(alice).fields == {"step": "end", "error_type": ""}
    chain(alice, "from_text")
    answer, _ = ask(alice)
    assert isinstance(answer, wire.Result)


def test_the_requests_deadline_is_that_of_its_steps(alice: Speaker) -> None:
    for around in (("stall", ""), ("", "stall")):
        chain(alice, *around)
        number = alice.number()
        inputs = {"x": wire.Input(frame=1)}
        alice.send(wire.Invoke(number, "chain", inputs, deadline_s=2.0), np.ones(WIDTH, np.float32).tobytes())
        answer, _ = alice.receive()
        assert isinstance(answer, wire.Failure)
        assert answer.error == "DeadlineExceeded"
        alice.received([number])
    chain(alice, "from_text")
    answer, _ = ask(alice)  # the only process for steps is free
    assert isinstance(answer, wire.Result)


def test_a_step_that_nobody_waits_for_ends(alice: Speaker) -> None:
    chain(alice, "stall")
    number = alice.number()
    alice.send(wire.Invoke(number, "chain", {"text": wire.Input(frame=1)}), TEXT)
    alice.send(wire.Cancel(number))
    answer, _ = alice.receive()
    assert isinstance(answer, wire.Failure)
    assert answer.error == "Cancelled"
    alice.received([number])
    chain(alice, "from_text")
    answer, _ = ask(alice)
    assert isinstance(answer, wire.Result)


def test_what_the_step_after_makes_can_stay(alice: Speaker) -> None:
    chain(alice, "from_text", "halves")
    number = alice.number()
    alice.send(wire.Invoke(number, "chain", {"text": wire.Input(frame=1)}, store={"first": "kept"}), TEXT)
    answer, frames = alice.receive()
    alice.received([number])
    assert isinstance(answer, wire.Result)
    assert answer.outputs == ("rest",)
    assert (np.frombuffer(frames[0], np.float32) == 2).all()
    value, frames = alice.told(wire.Value, wire.Get(alice.number(), "kept"))
    assert (value.dtype, tuple(value.shape)) == ("float32", (2, WIDTH // 4))
    number = alice.number()
    alice.send(wire.Invoke(number, "chain", {"text": wire.Input(frame=1)}, store={"second": "kept"}), TEXT)
    answer, _ = alice.receive()
    alice.received([number])
    assert isinstance(answer, wire.Failure)
    assert (answer.error, answer.fields) == ("InvalidRequest", {"buffer": "second"})


def test_what_a_step_makes_is_checked(alice: Speaker) -> None:
    chain(alice, "from_text")
    assert failure(alice, value=b"1 2 3").error == "WrongSize"
    assert failure(alice, value=b"one").fields["error_type"] == "ValueError"
    assert alice.ask("status")["open"] == 0


def test_only_steps_of_the_server_can_be_named(alice: Speaker) -> None:
    message = wire.Register(alice.number(), "other", before="os:abort")
    told, _ = alice.told(wire.Failure, message, tasks.encode_task(scaled()))
    assert told.error == "InvalidRequest"


def test_a_step_is_a_function_of_a_module() -> None:
    with pytest.raises(InvalidConfig) as caught:
        Steps({"name": "function"}, 1)
    assert caught.value.field == "steps.name"
