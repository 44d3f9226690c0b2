"""What kernels print, as lines of an executor's output."""

from __future__ import annotations

from kaas.worker.executor_worker import MINUTE_S, MOST_CLIENTS, PrintedLines


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_each_line_has_its_clients_name_and_nothing_that_a_terminal_obeys() -> None:
    said: list[str] = []
    tell = PrintedLines(said.append, Clock())
    tell("a", "one\ntwo\tthree\n")
    tell("b\n[client a] \x1b[2J", "\x1b[31mred\x1b[0m\r[client a] forged\x9b1A\u2028next ü\n\nend")
    assert said == [
        "[client a] one\n[client a] two\tthree\n",
        "[client b\\n[client a] \\x1b[2J] \\x1b[31mred\\x1b[0m\\r[client a] forged\\x9b1A\\u2028next ü\n"
        "[client b\\n[client a] \\x1b[2J] \n[client b\\n[client a] \\x1b[2J] end\n",
    ]


def test_a_client_prints_no_more_than_its_share_of_a_minute() -> None:
    said: list[str] = []
    clock = Clock()
    tell = PrintedLines(said.append, clock, 10)
    left_out = "[client a] (kernels printed more than 10 bytes in a minute: the rest is left out)\n"
    tell("a", "123456\n")
    tell("a", "7890123\n")
    tell("a", "more\n")
    tell("b", "other\n")
    assert said == ["[client a] 123456\n", "[client a] 789\n" + left_out, "[client b] other\n"]
    clock.now_s += MINUTE_S
    tell("a", "again\n")
    assert said[3:] == ["[client a] again\n"]


def test_however_many_names_there_are_memory_and_output_are_bounded() -> None:
    said: list[str] = []
    tell = PrintedLines(said.append, Clock(), 10)
    for number in range(3 * MOST_CLIENTS):
        tell(f"{number}", "123456\n")
    shown = sum(line.endswith("] 123456\n") for line in said)
    assert shown == MOST_CLIENTS + 1
