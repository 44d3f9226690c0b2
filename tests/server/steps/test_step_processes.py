"""The processes of a server's steps: how they start, end and are replaced."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kaas.errors import InvalidConfig, StepFailed
from kaas.server.steps import steps as steps_module
from kaas.server.steps.steps import Steps
from kaas.wire import protocol, sent_ktasks
from kaas.worker.processes import on_end
from tests.loops import run
from tests.open_files import files_of_children
from tests.server.conftest import Serve
from tests.server.servers import WIDTH, refused, scaled
from tests.timeouts import TIMEOUT_S, until

UNENCODABLE = {
    "fail_with_half_a_letter": r"LookupError: half a letter: \ud800",
    "fail_without_text": "Mute: (its text raises RuntimeError)",
    "name_by_half_a_letter": "UnicodeEncodeError: 'utf-8' codec can't encode character",
}
NAMED = {
    name: f"tests.server.steps.functions:{name}"
    for name in ("pid", "same", "end", "leave", "wait", "name_by_number", *UNENCODABLE)
}


def with_steps(
    scenario: Callable[[Steps], Awaitable[None]], processes: int = 1, named: Mapping[str, str] = NAMED
) -> None:
    async def opened() -> None:
        steps = Steps(named, processes, TIMEOUT_S)
        await steps.open()
        try:
            await scenario(steps)
        finally:
            steps.close()

    run(opened())


async def pid_of(steps: Steps) -> int:
    return int(np.frombuffer((await steps.run("pid", {}))["pid"].data, np.int64)[0])


def end_of(pid: int) -> Awaitable[object]:
    """From now on."""
    ended = asyncio.Event()
    on_end(asyncio.get_running_loop(), pid, ended.set)
    return ended.wait()


@pytest.mark.processes
def test_a_process_that_ended_while_idle_is_replaced() -> None:
    async def scenario(steps: Steps) -> None:
        first = await pid_of(steps)
        assert await pid_of(steps) == first
        ended = end_of(first)
        os.kill(first, signal.SIGKILL)
        await ended
        assert await pid_of(steps) != first

    with_steps(scenario)


@pytest.mark.processes
@pytest.mark.parametrize("size", [1, 8 << 20])
def test_a_process_that_ends_before_its_step_begins_is_replaced(size: int) -> None:
    async def scenario(steps: Steps) -> None:
        first = await pid_of(steps)
        os.kill(first, signal.SIGSTOP)
        made = asyncio.ensure_future(steps.run("same", {"x": bytes(size)}))
        await asyncio.sleep(0)  # now the step is sent, and the process does not read it
        os.kill(first, signal.SIGKILL)
        assert len((await made)["x"].data) == size
        assert await pid_of(steps) != first

    with_steps(scenario)


@pytest.mark.processes
@pytest.mark.parametrize("step", ["end", "leave"])
def test_a_process_that_ends_during_a_step_fails_the_step(step: str) -> None:
    async def scenario(steps: Steps) -> None:
        first = await pid_of(steps)
        with pytest.raises(StepFailed, match="its process has ended"):
            await steps.run(step, {"x": bytes(8 << 20)})
        assert await pid_of(steps) != first

    with_steps(scenario)


@pytest.mark.processes
def test_all_processes_end_with_their_server_also_after_a_kill() -> None:
    async def scenario() -> None:
        steps = Steps(NAMED, 2, TIMEOUT_S)
        first, second = await asyncio.gather(pid_of(steps), pid_of(steps))
        assert first != second
        ends = [end_of(first), end_of(second)]
        os.kill(first, signal.SIGKILL)
        await ends[0]
        steps.close()
        await ends[1]

    run(scenario())


async def cancelled(waits: Awaitable[object]) -> None:
    call = asyncio.ensure_future(waits)
    await asyncio.sleep(0)  # now it is sent
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.processes
def test_a_cancelled_step_that_does_not_end_is_ended_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "GRACE_S", 0.01)

    async def scenario(steps: Steps) -> None:
        ended = end_of(await pid_of(steps))
        await cancelled(steps.run("wait", {}))
        await ended

    with_steps(scenario)


@pytest.mark.processes
def test_a_cancelled_step_that_ends_leaves_its_process_to_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a client that cancels many calls has other clients wait for the start of as many processes."""
    monkeypatch.setattr(steps_module, "GRACE_S", TIMEOUT_S)

    async def scenario(steps: Steps) -> None:
        first = await pid_of(steps)
        await cancelled(steps.run("same", {"x": b"cancelled"}))
        assert (await steps.run("same", {"x": b"the next one's"}))["x"].data == b"the next one's"
        await cancelled(steps.run("fail_without_text", {}))
        assert await pid_of(steps) == first

    with_steps(scenario)


@pytest.mark.processes
def test_a_call_that_is_cancelled_before_its_turn_runs_no_step() -> None:
    async def scenario(steps: Steps) -> None:
        first = await pid_of(steps)
        before = asyncio.ensure_future(steps.run("same", {"x": b""}))
        await cancelled(steps.run("end", {}))
        await before
        assert await pid_of(steps) == first

    with_steps(scenario)


@pytest.mark.processes
@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_values_of_all_sizes_are_passed_and_returned(size: int) -> None:
    values = {"x": os.urandom(size), "": b"more"}

    async def scenario(steps: Steps) -> None:
        made = await steps.run("same", values)
        assert {name: (each.dtype, each.shape, bytes(each.data)) for name, each in made.items()} == {
            name: (None, None, value) for name, value in values.items()
        }

    with_steps(scenario)


@pytest.mark.processes
@pytest.mark.parametrize(("step", "said"), UNENCODABLE.items())
def test_an_outcome_that_cannot_be_encoded_fails_the_step_and_not_its_process(step: str, said: str) -> None:
    async def scenario(steps: Steps) -> None:
        first = await pid_of(steps)
        with pytest.raises(StepFailed, match=re.escape(said)):
            await steps.run(step, {})
        assert await pid_of(steps) == first

    with_steps(scenario)


@pytest.mark.processes
def test_names_are_text() -> None:
    async def scenario(steps: Steps) -> None:
        assert list(await steps.run("name_by_number", {"x": b"", "y": b""})) == ["0", "1"]

    with_steps(scenario)


@pytest.mark.processes
def test_processes_that_a_module_starts_do_not_block_its_steps() -> None:
    async def scenario(steps: Steps) -> None:
        assert (await steps.run("same", {"x": b"x"}))["x"].data == b"x"

    with_steps(scenario, named={"same": "tests.server.steps.starting:same"})


@pytest.mark.processes
def test_a_process_that_ends_before_each_step_is_replaced_once() -> None:
    async def scenario(steps: Steps) -> None:
        for _ in range(2):  # with one that is idle, and with none
            with pytest.raises(StepFailed, match="its process has ended"):
                await steps.run("same", {"x": b"x"})

    with_steps(scenario, named={"same": "tests.server.steps.idle:same"})


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """No more than these can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = os.dup(0)
    os.close(first)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.processes
@pytest.mark.parametrize("count", [0, 2, 4])
def test_without_files_for_a_process_a_step_fails(count: int) -> None:
    async def scenario() -> None:
        steps = Steps(NAMED, 1, TIMEOUT_S)
        opened = files_of_children()
        with files_left(count), pytest.raises(StepFailed, match="Too many open files"):
            await steps.run("pid", {})
        with files_left(count), pytest.raises(InvalidConfig, match="Too many open files") as caught:
            await steps.open()
        assert caught.value.field == "steps"
        assert files_of_children() == opened
        await pid_of(steps)
        steps.close()

    run(scenario())


def test_a_step_is_a_function_of_a_module() -> None:
    with pytest.raises(InvalidConfig) as caught:
        Steps({"name": "function"}, 1, 1.0)
    assert caught.value.field == "steps.name"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("target", "field", "said"),
    [
        ("tests.server.nowhere:f", "steps.bad", "No module named 'tests.server.nowhere'"),
        (
            "tests.server.steps.functions:nothing",
            "steps.bad",
            "module 'tests.server.steps.functions' has no function or class 'nothing'",
        ),
        (
            "tests.server.steps.functions:NOTHING",
            "steps.bad",
            "module 'tests.server.steps.functions' has no function or class 'NOTHING'",
        ),
        ("tests.server.steps.broken:f", "steps.bad", "LookupError: as it must be"),
        ("tests.server.steps.leaving:f", "steps", "exit status 3"),
    ],
)
def test_an_unusable_step_is_refused_and_not_imported_in_this_process(target: str, field: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said) as caught:
        run(Steps({**NAMED, "bad": target}, 1, TIMEOUT_S).open())
    assert caught.value.field == field
    assert not {"tests.server.steps.broken", "tests.server.steps.leaving"} & sys.modules.keys()


@pytest.mark.processes
def test_modules_that_take_too_long_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="take longer than") as caught:
        run(Steps(NAMED, 1, 0.0).open())
    assert caught.value.field == "steps"


@pytest.mark.processes
def test_a_server_with_a_missing_step_reports_it_and_does_not_start(tmp_path: Path) -> None:
    said = refused(tmp_path, {"steps": {"bad": "tests.server.steps.functions:nothing"}, "log": {"level": "error"}})
    assert said == (
        "InvalidConfig: steps.bad is 'tests.server.steps.functions:nothing': "
        "module 'tests.server.steps.functions' has no function or class 'nothing'\n"
    )


@pytest.mark.processes
def test_output_of_modules_is_on_the_servers_stderr(serve: Serve) -> None:
    server = serve({"steps": {"same": "tests.server.steps.printing:same"}, "log": {"level": "error"}})
    assert sorted(server.errors.read_text().splitlines()) == ["a line of a module's", "and of what it runs"]


@pytest.mark.processes
def test_a_server_without_its_folder_starts_no_step(serve: Serve, tmp_path: Path) -> None:
    serve()
    settings = {"steps": {"bad": "tests.server.steps.broken:f"}, "log": {"level": "error"}}
    assert refused(tmp_path, settings).startswith("UsageUnavailable: ")


@pytest.mark.processes
def test_a_server_that_ends_leaves_nothing_of_its_steps(serve: Serve) -> None:
    def ended(pid: int) -> bool:
        return not Path(f"/proc/{pid}").exists()

    server = serve({"steps": {"same": NAMED["same"]}, "log": {"level": "error"}})
    with_server = server.speaker()
    with_server.register(scaled())
    message = protocol.Register(with_server.number(), "chain", before="same")
    with_server.reply_to(protocol.Registered, message, sent_ktasks.encode_task(scaled()))
    with_server.reply_to(
        protocol.Result,
        protocol.Invoke(1, "chain", {"x": protocol.Input(frame=1)}),
        bytes(4 * WIDTH),
    )
    with_server.received([1])
    with_server.close()
    children = server.children()
    server.terminate()
    assert server.wait() == 0
    for pid in children:
        until(lambda pid=pid: ended(pid))  # type: ignore[misc]
    assert not server.errors.read_text()
