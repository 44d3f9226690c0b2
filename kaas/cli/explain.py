"""`kaas explain`: why a request of a recorded pool went where it went, when it did."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from kaas.cli.observe import plain, print_whole
from kaas.cli.policies import Json, PolicyName, RecordFile, fail_different, find_policy

if TYPE_CHECKING:
    from kaas.scheduling.candidates import Candidate, Destination, Why
    from kaas.scheduling.explaining import Explanation

console = Console(emoji=False)
HASH = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24,}\b")
"""In the names under which policies know functions: of the kTask, and of the constants. Eight digits are shown."""


def explain(
    record: RecordFile,
    request: Annotated[int, typer.Argument(help="its number, as in the record")],
    epoch: Annotated[
        int | None, typer.Option(min=1, help="of the pool; by default the last one that has the request")
    ] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="of the request; by default the last one")] = None,
    policy: PolicyName = None,
    json: Json = False,
    rows: Annotated[int, typer.Option(min=1, help="candidates and workers to show")] = 10,
) -> None:
    """Say why a request of a recorded pool went where it went."""
    import msgspec

    from kaas.scheduling import explaining

    chosen = None if policy is None else find_policy(policy)
    found = explaining.explain(record, request, chosen, epoch=epoch, attempt=attempt)
    if not isinstance(found, explaining.Explanation):
        fail_different(found)
    if json:
        print(msgspec.json.encode(found).decode())
        return
    for line in _story(found):
        console.print(plain(line), soft_wrap=True)
    for table in _tables(found, found.why, rows) if found.why is not None else ():
        print_whole(table)


def _story(found: Explanation) -> Iterator[str]:
    """Yield the sentences above the tables."""
    where = f"epoch {found.epoch}, {found.policy}"
    if found.attempts > 1:
        where = f"attempt {found.attempt}, {where}"
    yield f"request {found.request} of {found.client} for {_short(found.function)}: {where}"
    ends = {
        "dispatched": f"went to worker {found.worker} on device {found.device}",
        "rejected": f"was rejected: {found.reason}",
        "cancelled": "was cancelled",
        "waiting": "still waits",
    }
    wait_s = found.decided_s - found.arrived_s
    yield f"arrived at {_digits(found.arrived_s)} s, {ends[found.fate]} after {_digits(wait_s)} s"
    yield f"line {found.line}: {_event(found)}"
    if found.before:
        yield f"requests that went meanwhile: {found.before}, of which {found.later} had arrived later"
    for part in found.waited:
        yield f"waited {_digits(part.until_s - part.from_s)} s, from {_digits(part.from_s)} s, for: {part.what}"
    if found.alone:
        yield "It must run alone, since it may have ended a device; no other request is compared with it."
    elif found.why is None:
        yield "The policy does not say why."


def _event(found: Explanation) -> str:
    """Return the event of a decision in short, by its numbers and names."""
    names = ("request", "client", "worker", "device", "reason")
    fields = [f"{name} {value}" for name in names if (value := getattr(found.event.value, name, None)) is not None]
    return " ".join([found.event.type, f"at {_digits(found.decided_s)} s", *fields])


def _tables(found: Explanation, why: Why, rows: int) -> Iterator[Table]:
    """Yield the candidates, then the workers, at most `rows` of each; the request and its worker are always there."""
    if why.candidates:
        first, rest = why.candidates[:rows], why.candidates[rows:]
        yield _candidates(why.candidates, [*first, *(each for each in rest if each.request == found.request)], found)
    workers = sorted(why.destinations, key=lambda each: (each.worker != found.worker, bool(each.held), each.worker))
    if workers:
        yield _workers(workers, workers[:rows], found)


def _candidates(all_of_them: Sequence[Candidate], shown: Sequence[Candidate], found: Explanation) -> Table:
    rows = [{**each.scores, **each.figures} for each in all_of_them]
    scores = dict.fromkeys(name for each in all_of_them for name in each.scores)
    figures = dict.fromkeys(name for each in all_of_them for name in each.figures)
    equal, columns = _split([name for name in scores | figures if name != "request"], rows)  # it has a column anyway
    title = _title("candidates, the next one in front", all_of_them, shown)
    table = Table("", "request", "client", "function", title=title, caption=_caption(equal, rows))
    for name in columns:
        table.add_column(_header(name), style="bold" if name in scores else None)
    table.add_column("held back by")
    for each in shown:
        marked = ">" if each.request == found.request else ""
        values = {**each.scores, **each.figures}
        cells = [_number(name, values[name]) if name in values else "" for name in columns]
        names = (plain(each.client), plain(_short(each.function)))
        table.add_row(marked, str(each.request), *names, *cells, plain(each.held))
    return table


def _workers(all_of_them: Sequence[Destination], shown: Sequence[Destination], found: Explanation) -> Table:
    rows = [each.figures for each in all_of_them]
    equal, columns = _split(list(rows[0]), rows)
    table = Table("", "worker", "device", title=_title("workers", all_of_them, shown), caption=_caption(equal, rows))
    for name in columns:
        table.add_column(plain(name))
    table.add_column("takes none:")
    for each in shown:
        cells = [_number(name, each.figures[name]) for name in columns]
        marked = ">" if each.worker == found.worker else ""
        table.add_row(marked, str(each.worker), str(each.device), *cells, plain(each.held))
    return table


def _split(names: list[str], rows: Sequence[Mapping[str, float]]) -> tuple[list[str], list[str]]:
    """Return the names of figures that are the same in all of several rows, and the others. Empty rows do not count."""
    told = [row for row in rows if row]
    equal = [name for name in names if len(told) > 1 and len({row.get(name) for row in told}) == 1]
    return equal, [name for name in names if name not in equal]


def _caption(equal: list[str], rows: Sequence[Mapping[str, float]]) -> str | None:
    values = {name: value for row in rows for name, value in row.items()}
    told = ", ".join(f"{_header(name)} {_number(name, values[name])}" for name in equal)
    return f"the same for all: {told}" if told else None


def _short(function: str) -> str:
    """Return a function's name with the first digits of each hash, which labels of kTasks have, too."""
    return HASH.sub(r"\1", function)


def _header(name: str) -> str:
    return plain(f"{name[1:]} (most first)" if name.startswith("-") else name)


def _number(name: str, value: float) -> str:
    return _digits(0 - value if name.startswith("-") else value)


def _digits(value: float) -> str:
    """Return a number with six digits, and with microseconds at least: the clock of a pool may be at any time."""
    return f"{value:.6g}" if abs(value) < 1 or abs(value) >= 1e15 else f"{value:.6f}".rstrip("0").rstrip(".")


def _title(name: str, all_of_them: Sequence[object], shown: Sequence[object]) -> str:
    return name if len(all_of_them) == len(shown) else f"{name}, {len(shown)} of {len(all_of_them)}"
