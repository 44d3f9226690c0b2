"""Tables, progress and sweeps of policies that are compared over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from kaas.cli.observe import plain, print_whole
from kaas.errors import InvalidRequest
from kaas.import_target import modules_here

if TYPE_CHECKING:
    from kaas.scheduling.simulation.scenario import Scenario

FigureRow = Mapping[str, Any]
"""Labels, and figures as (mean, standard deviation)."""
MOST_VALUES = 10_000
"""Of an option that is swept."""
COLUMNS = {
    "mean_latency_s": "mean latency (s)",
    "p50_latency_s": "p50 (s)",
    "p99_latency_s": "p99 (s)",
    "worst_client_s": "worst client's mean (s)",
    "rejected_ratio": "rejected",
    "miss_ratio": "misses",
    "false_miss_ratio": "false misses",
    "cold_ratio": "cold",
    "duplicates": "copies of the hottest",
    "function_variance": "variance by function",
    "client_variance": "variance by client",
    "waiting_jain": "jain while waiting",
    "utilisation": "utilisation",
}


def compare(
    scenario: Scenario, policies: str | None, seeds: int, sweep: str | None, plot: Path | None, *, json: bool
) -> None:
    """Run a scenario under each policy, with each seed and each value of a swept option, and print the figures.

    policies are names and module:Class, separated by commas; None stands for the scenario's. sweep is option=values.

    Raises:
        InvalidRequest: the sweep is none, or no policy has its option.
        MissingPackage: there is something to plot, but no matplotlib.
    """
    from kaas.papers.scheduling.plots import draw_rows
    from kaas.scheduling.comparing.runs import SimulatedRun, client_spreads, measure_all, spreads

    check_plot(plot)
    option, values = (None, ()) if sweep is None else swept(sweep)
    variants = list(_variants(scenario, policies, option, values))
    runs = [
        SimulatedRun(partial(replace, _chosen(scenario, told), seed=seed), told if ":" in told["name"] else None)
        for told in variants
        for seed in range(scenario.seed, scenario.seed + seeds)
    ]
    with progress("simulating", len(runs)) as done:
        measured = measure_all(runs, done)
    rows: list[dict[str, Any]] = []
    by_seed = [measured[place * seeds : (place + 1) * seeds] for place in range(len(variants))]
    for told, figures in zip(variants, by_seed, strict=True):
        labels = {"policy": told["name"]} | ({option: told[option]} if option in told else {})
        rows.append({**labels, **spreads(figures)})
    for names in _alike(rows, labels=("policy", option)):
        note = f"the same figures: {', '.join(names)} (static differs from fcfs by its shares, edf by deadlines)"
        Console(stderr=True, emoji=False).print(note, markup=False, highlight=False, soft_wrap=True)
    if plot is not None:
        numeric = option is not None and all(type(value) in {int, float} for value in values)
        draw_rows(rows, plot, along=option if numeric else None)
    if json:
        whole = [row | {"per_client": client_spreads(figures)} for row, figures in zip(rows, by_seed, strict=True)]
        print(msgspec.json.encode(whole).decode())
        return
    show(rows, seeds)


def check_plot(file: Path | None) -> None:
    """Check, before all runs, that a plot can be drawn, if there is one.

    Raises:
        InvalidRequest: the file's name is not one of a PNG.
        MissingPackage: there is no matplotlib.
    """
    from kaas.bench.report import check_matplotlib

    if file is not None:
        if file.suffix.lower() != ".png":
            raise InvalidRequest(f"--plot draws a PNG: {file} does not end with .png")
        check_matplotlib()


def swept(text: str) -> tuple[str, tuple[Any, ...]]:
    """Return the option and the values of a sweep: "limit=0..45", "order=paper,longest".

    Raises:
        InvalidRequest: it is neither.
    """
    option, equals, told = text.partition("=")
    if not (option.isidentifier() and equals and told):
        raise InvalidRequest(f"--sweep is option=first..last or option=value,value, not {text!r}")
    first, dots, last = told.partition("..")
    if not dots:
        values = [_value(each.strip()) for each in told.split(",")]
        if twice := [value for place, value in enumerate(values) if value in values[:place]]:
            raise InvalidRequest(f"--sweep {option}: the value {twice[0]!r} stands there twice")
        return option, tuple(values)
    try:
        low, high = int(first), int(last)
    except ValueError as error:
        raise InvalidRequest(f"--sweep {option}: a range is of whole numbers, not {told!r}") from error
    if not 0 <= high - low < MOST_VALUES:
        raise InvalidRequest(f"--sweep {option}: {told!r} has no values, or more than {MOST_VALUES:,}")
    return option, tuple(range(low, high + 1))


def _alike(rows: Sequence[FigureRow], labels: Sequence[str | None]) -> list[list[str]]:
    """Return the policies of rows with the same figures, where several have them."""
    groups: dict[str, dict[str, None]] = {}
    for row in rows:
        figures = {name: value for name, value in row.items() if name not in labels}
        groups.setdefault(repr(figures), {})[row["policy"]] = None
    return [list(names) for names in groups.values() if len(names) > 1]


@contextmanager
def progress(what: str, runs: int) -> Iterator[Callable[[], None]]:
    """Show how many of the runs are done, on the terminal's error output; the value counts one more."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=runs)
        yield lambda: shown.advance(task)


@contextmanager
def arrivals() -> Iterator[Callable[[int, float], None]]:
    """Show how many requests have arrived, and the virtual time; the value tells both."""
    with Progress(TextColumn("{task.description}"), console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=None)
        yield lambda number, at_s: shown.update(task, description=f"{number:,} requests, {at_s:,.0f} s")


def show(rows: Sequence[FigureRow], seeds: int, what: str = "") -> None:
    """Print rows as a table, whose title says over how many seeds they are; what: begins the title."""
    title = f"{what}mean ± standard deviation over {seeds} seeds" if seeds > 1 else f"{what}one seed"
    labels = list(dict.fromkeys(name for row in rows for name, value in row.items() if not _is_figure(value)))
    table = Table(*map(plain, labels), *COLUMNS.values(), title=title, title_justify="left")
    for row in rows:
        cells = [plain(str(row.get(name, ""))) for name in labels]
        table.add_row(*cells, *(_spread(*row[name]) for name in COLUMNS))
    print_whole(table)


def _is_figure(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _spread(mean: float, sd: float) -> str:
    return f"{mean:.4g} ± {sd:.2g}" if sd else f"{mean:.4g}"


def _value(text: str) -> Any:
    """Return a value as JSON has it, or the text itself."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _variants(
    scenario: Scenario, policies: str | None, option: str | None, values: Sequence[Any]
) -> Iterator[dict[str, Any]]:
    """Yield each policy's name and options. The scenario's policy keeps its options; others have their defaults."""
    from kaas.scheduling.policies import factory
    from kaas.scheduling.policy_choice import choose_policy, options_of

    own = scenario.policy
    names = [own.name] if policies is None else [name.strip() for name in policies.split(",")]
    if len({*names}) != len(names):
        raise InvalidRequest(f"--policies names a policy twice: {policies}")
    found = False
    for name in names:
        options = dict(own.options) if name == own.name else {}
        with modules_here():
            made = factory(choose_policy("policies", name))
        if option not in options_of(made):
            yield {"name": name, **options}
            continue
        found = True
        for value in values:
            yield {"name": name, **options, option: value}
    if option is not None and not found:
        raise InvalidRequest(f"--sweep {option}: no such option of {', '.join(names)}")


def _chosen(scenario: Scenario, told: Mapping[str, Any]) -> Scenario:
    from kaas.scheduling.simulation.scenario import PolicyChoice

    if ":" in told["name"]:
        return scenario
    options = {name: value for name, value in told.items() if name != "name"}
    return replace(scenario, policy=PolicyChoice(told["name"], options))
