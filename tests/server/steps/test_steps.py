"""The server's cTasks around a client's kTask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

import kaas
from kaas.errors import InvalidRequest, StepFailed
from kaas.wire import protocol, sent_ktasks
from tests.server.conftest import Serve
from tests.server.servers import STEPS as CODE
from tests.server.servers import WIDTH, Server, Speaker, scaled
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

STEPS = {
    name: f"tests.server.steps.functions:{name}"
    for name in ("from_text", "total", "fail", "end", "wait", "halves", "whole_numbers", "folded")
}
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


def chain(
    speaker: Speaker, before: str = "", after: str = "", task: kaas.KTask | None = None, name: str = "chain"
) -> None:
    message = protocol.Register(speaker.number(), name, before=before, after=after)
    speaker.reply_to(protocol.Registered, message, sent_ktasks.encode_task(task or scaled()))


def ask(speaker: Speaker, name: str = "text", value: bytes = TEXT) -> tuple[protocol.FromServer, list[bytes]]:
    number = speaker.number()
    speaker.send(protocol.Invoke(number, "chain", {name: protocol.Input(frame=1)}), value)
    answer = speaker.receive()
    speaker.received([number])
    return answer


def until(reached: Callable[[], bool]) -> None:
    ends_s = monotonic() + TIMEOUT_S
    while not reached():
        assert monotonic() < ends_s
        sleep(0.01)


def failure(speaker: Speaker, name: str = "text", value: bytes = TEXT) -> protocol.Failure:
    answer, _ = ask(speaker, name, value)
    assert isinstance(answer, protocol.Failure), answer
    return answer


def test_steps_stand_around_a_task(alice: Speaker) -> None:
    chain(alice, "from_text", "total")
    answer, frames = ask(alice)
    assert isinstance(answer, protocol.Result)
    assert answer.outputs == ("total",)
    assert np.frombuffer(frames[0], np.float32) == [2 * WIDTH]


def test_a_task_may_have_only_one_of_both_steps(alice: Speaker) -> None:
    chain(alice, "from_text")
    answer, frames = ask(alice)
    assert isinstance(answer, protocol.Result)
    assert answer.outputs == ("y",)
    assert (np.frombuffer(frames[0], np.float32) == 2).all()
    chain(alice, "", "total")
    _, frames = ask(alice, "x", np.ones(WIDTH, np.float32).tobytes())
    assert np.frombuffer(frames[0], np.float32) == [2 * WIDTH]


def test_an_error_of_a_step_is_reported(alice: Speaker) -> None:
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
    assert isinstance(answer, protocol.Result)


def test_values_of_a_step_are_checked(alice: Speaker) -> None:
    chain(alice, "from_text")
    assert failure(alice, value=b"1 2 3").error == "WrongSize"
    assert failure(alice, value=b"one").fields["error_type"] == "ValueError"
    chain(alice, "whole_numbers")
    told = failure(alice)
    assert told.error == "WrongDtype"
    wrong = "input 'x' takes float32, not int32; convert it, as x.astype('float32')"
    assert told.message == f"the values of step 'whole_numbers' do not fit: {wrong}"
    x, y = kaas.Buffer("x", (WIDTH // 4, 4), "float32"), kaas.Buffer("y", WIDTH, "float32")
    kernel = kaas.Kernel(CODE, "scale", WIDTH // 256, 256, [kaas.In(x), kaas.Out(y), kaas.f32(2), kaas.u32(WIDTH)])
    chain(alice, "folded", task=kaas.KTask([kernel], [y]))
    assert failure(alice).error == "WrongShape"
    assert alice.ask("status")["open"] == 0


def test_only_steps_of_the_server_can_be_named(alice: Speaker) -> None:
    message = protocol.Register(alice.number(), "other", before="os:abort")
    told, _ = alice.reply_to(protocol.Failure, message, sent_ktasks.encode_task(scaled()))
    assert told.error == "InvalidRequest"


def test_a_cancelled_request_can_be_sent_again_at_once(alice: Speaker) -> None:
    chain(alice, "wait", name="waits")  # in the only process of steps: the first request cannot end before its cancel
    chain(alice, "from_text")
    inputs = {"text": protocol.Input(frame=1)}
    waits, first, second = alice.number(), alice.number(), alice.number()
    alice.send(protocol.Invoke(waits, "waits", inputs), TEXT)
    alice.send(protocol.Invoke(first, "chain", inputs, key="the same"), TEXT)
    alice.send(protocol.Cancel(first))
    alice.send(protocol.Invoke(second, "chain", inputs, key="the same"), TEXT)
    alice.send(protocol.Cancel(waits))
    answers = [alice.receive() for _ in range(3)]
    *cancelled, (result, frames) = sorted(answers, key=lambda answer: isinstance(answer[0], protocol.Result))
    assert {each.number: each.error for each, _ in cancelled if isinstance(each, protocol.Failure)} == {
        waits: "Cancelled", first: "Cancelled",
    }  # fmt: skip
    assert result == protocol.Result(second, ("y",))
    assert (np.frombuffer(frames[0], np.float32) == 2).all()
    alice.received((waits, first, second))


def test_what_is_cancelled_in_the_step_after_is_charged_each_time_and_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    """A key runs for nothing only where no reply was sent."""
    begun = tmp_path / "begun"
    monkeypatch.setenv("STEP_BEGUN", str(begun))
    server = serve({"steps": {"later": "tests.server.steps.functions:total_later"}})
    with closing(server.speaker("alice")) as alice:
        alice.register(scaled())
        chain(alice, after="later")
        for _ in range(3):
            number = alice.number()
            message = protocol.Invoke(number, "chain", {"x": protocol.Input(frame=1)}, key="K", store={"total": "kept"})
            alice.send(message, bytes(4 * WIDTH))
            until(begun.exists)
            alice.send(protocol.Cancel(number))
            answer, _ = alice.receive()
            begun.unlink()
            assert isinstance(answer, protocol.Failure)
            assert answer.error == "Cancelled"
            alice.received([number])

        def charged() -> dict[str, int]:
            outcomes = [each["outcomes"] for each in alice.ask("usage")["flows"] if each["function"] == "chain"]
            return dict(outcomes[0]) if outcomes else {}

        until(lambda: charged() == {"cancelled": 3})
        assert all(each["what"] != "objects" or not each["nbytes"] for each in alice.ask("usage")["holdings"])


def test_a_step_that_does_not_end_is_ended_and_its_request_in_time(serve: Serve) -> None:
    device, steps = {"kind": "software", "memory_bytes": 256 << 20}, {"steps": STEPS, "step_processes": 1}
    speaker = serve({**steps, "pool": {"devices": [device], "run_limit_s": 4.0}}).speaker()
    speaker.register(scaled())
    chain(speaker, "wait")
    number = speaker.number()
    speaker.send(protocol.Invoke(number, "chain", {"text": protocol.Input(frame=1)}, deadline_s=0.05), TEXT)
    told, _ = speaker.receive()
    assert isinstance(told, protocol.Failure)
    assert told.error == "DeadlineExceeded"
    chain(speaker, "from_text")
    answer, _ = ask(speaker)  # the only process for steps was free
    assert isinstance(answer, protocol.Result)
    chain(speaker, "wait")
    assert failure(speaker).fields == {"step": "wait", "error_type": ""}
    chain(speaker, "from_text")
    answer, _ = ask(speaker)
    assert isinstance(answer, protocol.Result)
    speaker.close()


def test_quotas_count_before_a_step_is_run(serve: Serve) -> None:
    speaker = serve({"steps": STEPS, "limits": {"quotas": {"requests_per_s": 0.01}}}).speaker()
    speaker.register(scaled())
    chain(speaker, "fail")
    assert [failure(speaker).error for _ in range(2)] == ["StepFailed", "QuotaExceeded"]
    (flow, *_) = [each for each in speaker.ask("usage")["flows"] if each["function"]]
    assert flow["outcomes"] == {"StepFailed": 1}
    speaker.close()


def test_bytes_in_and_out_and_copied_bytes_are_counted_separately(alice: Speaker) -> None:
    def counted() -> list[int]:
        flows = [each for each in alice.ask("usage")["flows"] if each["function"] in (scaled().label, "chain")]
        return [sum(flow[name] for flow in flows) for name in ("bytes_in", "bytes_out", "bytes_copied")]

    values = 4 * WIDTH
    alice.send(protocol.Invoke(alice.number(), scaled().key, {"x": protocol.Input(frame=1)}), bytes(values))
    alice.receive()
    before = counted()
    chain(alice, "from_text", "total")
    ask(alice)
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [len(TEXT), 4, 2 * values]
    before = counted()
    message = protocol.Invoke(alice.number(), scaled().key, {"x": protocol.Input(frame=1)}, store={"y": "kept"})
    alice.reply_to(protocol.Result, message, bytes(values))
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [values, 0, 2 * values]


def test_a_value_of_the_step_after_can_be_stored(alice: Speaker) -> None:
    chain(alice, "from_text", "halves")
    number = alice.number()
    alice.send(protocol.Invoke(number, "chain", {"text": protocol.Input(frame=1)}, store={"first": "kept"}), TEXT)
    answer, frames = alice.receive()
    alice.received([number])
    assert isinstance(answer, protocol.Result)
    assert answer.outputs == ("rest",)
    assert (np.frombuffer(frames[0], np.float32) == 2).all()
    value, _ = alice.reply_to(protocol.Value, protocol.Get(alice.number(), "kept"))
    assert (value.dtype, tuple(value.shape)) == ("float32", (2, WIDTH // 4))
    number = alice.number()
    alice.send(
        protocol.Invoke(number, "chain", {"text": protocol.Input(frame=1)}, store={"second": "kept"}),
        TEXT,
    )
    answer, _ = alice.receive()
    alice.received([number])
    assert isinstance(answer, protocol.Failure)
    assert (answer.error, answer.fields) == ("InvalidRequest", {"buffer": "second"})


def test_a_client_calls_functions_with_steps(server: Server) -> None:
    with kaas.Client(server.endpoint, keys=server.key_of("alice")) as client:
        both = client.register(scaled(), name="both", before="from_text", after="total")
        for function in (both, client.function("both")):  # as another program finds it
            made = function.call(text=TEXT).result(TIMEOUT_S)
            assert {name: np.frombuffer(value, np.float32)[0] for name, value in made.items()} == {"total": 2 * WIDTH}
            with pytest.raises(InvalidRequest):
                function.call(TEXT)  # a step's inputs have no order
        before = client.register(scaled(), name="before", before="from_text")
        assert (client.call(before, {"text": np.frombuffer(TEXT, np.uint8)}).result(TIMEOUT_S) == 2).all()
        after = client.register(scaled(), name="after", after="total")
        assert [*client.call(after, {"x": np.ones(WIDTH, np.float32)}).result(TIMEOUT_S)] == ["total"]
        with pytest.raises(InvalidRequest):
            client.call(before, {"text": client.put("text", TEXT)})
        failing = client.register(scaled(), name="failing", before="fail")
        with pytest.raises(StepFailed):
            client.call(failing, {"text": TEXT}).result(TIMEOUT_S)
