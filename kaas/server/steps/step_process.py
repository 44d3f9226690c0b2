"""A process that runs steps of a server, one at a time; the server starts it (`-m kaas.server.steps.step_process`)."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from io import BufferedRWPair
from typing import Any

import msgspec

from kaas.errors import InvalidConfig, KaasError
from kaas.import_target import find_target
from kaas.ktask.arguments import Buffer
from kaas.ktask.request import raw_bytes
from kaas.server.steps.step_messages import BEGUN, LENGTH, Gave, Raised, StepCall, head
from kaas.worker.processes import ordered, report_failure, report_ready

_ANY = Buffer("value", 1)

StepFunction = Callable[[dict[str, bytes]], Mapping[str, Any]]


def main() -> None:
    """Run steps until the server closes the connection."""
    reports = int(sys.argv[1])
    os.dup2(2, 1)  # prints of the operator's modules must not mix with the server's output
    sys.stdout = sys.stderr  # unbuffered
    descriptor, named = ordered(sys.stdin.buffer)
    os.set_inheritable(descriptor, False)  # processes that a step starts must not hold it
    try:
        functions = {name: _function(f"steps.{name}", target) for name, target in named.items()}
    except KaasError as error:
        report_failure(reports, error)
        return
    report_ready(reports, b"")
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        carry_out(stream, functions)


def _function(field: str, target: str) -> StepFunction:
    """Return the function of a step.

    Raises:
        InvalidConfig
    """
    try:
        function: StepFunction = find_target(field, target)
    except InvalidConfig:
        raise
    except Exception as error:  # the operator's module may raise any error
        message = f"{field} is {target!r}, whose module raised {type(error).__name__}: {error}"
        raise InvalidConfig(message, field=field) from error
    return function


def carry_out(stream: BufferedRWPair, functions: Mapping[str, StepFunction]) -> None:
    """Carry out calls until the stream ends."""
    while length := stream.read(LENGTH.size):
        stream.write(BEGUN)
        stream.flush()
        call = msgspec.msgpack.decode(stream.read(*LENGTH.unpack(length)), type=StepCall)
        values = {name: stream.read(size) for name, size in call.sizes.items()}
        for part in _carried_out(functions[call.step], values):
            stream.write(part)
        stream.flush()


def _carried_out(function: StepFunction, values: dict[str, bytes]) -> list[bytes | memoryview]:
    try:
        made = {str(name): _made(value) for name, value in function(values).items()}
        return [head(Gave({name: kind for name, (kind, _) in made.items()})), *(flat for _, flat in made.values())]
    except Exception as error:  # noqa: BLE001 - any error of the operator's function goes to the client
        return [head(Raised(type(error).__name__, _text(error), _traceback(error)))]


def _text(error: Exception) -> str:
    """Return an error's text as valid UTF-8."""
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception as text_error:  # noqa: BLE001 - the operator's class may raise any error
        return f"(its text raises {type(text_error).__name__})"


def _traceback(error: Exception) -> str:
    """Return the traceback from the operator's function on."""
    frames = error.__traceback__
    below = frames.tb_next if frames is not None and frames.tb_next is not None else frames
    shown = "".join(traceback.format_exception(type(error), error, below))
    return shown.encode(errors="backslashreplace").decode()


def _made(value: Any) -> tuple[tuple[str | None, tuple[int, ...] | None, int], memoryview]:
    flat, dtype, shape = raw_bytes(_ANY, value)
    return (dtype, shape, len(flat)), flat


if __name__ == "__main__":
    main()
