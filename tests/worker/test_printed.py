"""The text that kernels print, as lines of an executor's output."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from kaas.worker.processes import MINUTE_S, MOST_NAMES, PIPE_BYTES, PrintedLines, pass_on
from tests.timeouts import TIMEOUT_S


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_each_line_has_its_clients_name_and_nothing_that_a_terminal_obeys() -> None:
    written: list[str] = []
    show = PrintedLines(written.append, Clock())
    show("a", "one\ntwo\tthree\n")
    show("b\n[client a] \x1b[2J", "\x1b[31mred\x1b[0m\r[client a] forged\x9b1A\u2028next ü\n\nend")
    assert written == [
        "[client a] one\n[client a] two\tthree\n",
        "[client b\\n[client a] \\x1b[2J] \\x1b[31mred\\x1b[0m\\r[client a] forged\\x9b1A\\u2028next ü\n"
        "[client b\\n[client a] \\x1b[2J] \n[client b\\n[client a] \\x1b[2J] end\n",
    ]


def test_a_client_prints_no_more_than_its_share_of_a_minute() -> None:
    written: list[str] = []
    clock = Clock()
    show = PrintedLines(written.append, clock, 10)
    left_out = "[client a] (it printed more than 10 bytes in a minute: the rest is left out)\n"
    show("a", "123456\n")
    show("a", "7890123\n")
    show("a", "more\n")
    show("b", "other\n")
    assert written == ["[client a] 123456\n", "[client a] 789\n" + left_out, "[client b] other\n"]
    clock.now_s += MINUTE_S
    show("a", "again\n")
    assert written[3:] == ["[client a] again\n"]


def test_however_many_names_there_are_memory_and_output_are_bounded() -> None:
    written: list[str] = []
    show = PrintedLines(written.append, Clock(), 10)
    for number in range(3 * MOST_NAMES):
        show(f"{number}", "123456\n")
    shown = sum(line.endswith("] 123456\n") for line in written)
    assert shown == MOST_NAMES + 1


def test_a_pipe_is_passed_on_by_lines_with_the_name_of_its_process() -> None:
    written: list[str] = []
    reader, writer = os.pipe()
    with open(writer, "wb", buffering=0) as pipe:
        pipe.write(b"one\n2030-01-01 CRITICAL forged\n\x1b[2J\xff")
    with open(reader, "rb") as end:
        pass_on(end, "7", PrintedLines(written.append, Clock(), kind="worker"))
    assert "".join(written).splitlines() == [
        "[worker 7] one",
        "[worker 7] 2030-01-01 CRITICAL forged",
        "[worker 7] \\x1b[2J\N{REPLACEMENT CHARACTER}",
    ]


def test_a_line_without_end_takes_no_memory() -> None:
    sizes: list[int] = []
    reader, writer = os.pipe()
    with open(writer, "wb", buffering=0) as pipe, open(reader, "rb") as end, ThreadPoolExecutor() as threads:
        show = PrintedLines(lambda text: sizes.append(len(text)), Clock(), 1 << 30)
        passing = threads.submit(pass_on, end, "7", show)
        pipe.write(b"x" * (4 * PIPE_BYTES))
        pipe.close()
        passing.result(TIMEOUT_S)
    assert sum(sizes) > 4 * PIPE_BYTES
    assert max(sizes) < 3 * PIPE_BYTES
