"""The `kaas` command: thin wrappers that print what the library returns."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kaas import draw
from kaas.dtypes import is_integer_kind
from kaas.errors import InvalidRequest, KaasError
from kaas.graph import KTask

if TYPE_CHECKING:
    from kaas.executor.profile import KernelTime

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
console = Console()

TaskFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="a kTask as KTask.to_json writes it")]


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=0.5, help="for which the clients compete")] = 8.0,
    vertices: Annotated[int, typer.Option(min=32, help="of each client's graph")] = 256,
) -> None:
    """Three clients of weights 1, 1 and 2 share four devices, one loses its executor; checked against NumPy."""
    from kaas.demo import Size, run

    if not run(Size(seconds, vertices), console):
        raise typer.Exit(1)


@app.command()
def status(
    address: Annotated[str, typer.Option(help="of the Ray cluster")] = "auto",
    name: Annotated[str, typer.Option(help="of the pool")] = "kaas",
) -> None:
    """Show a running pool: its devices, executors and queue."""
    from kaas.api import attach
    from kaas.api import status as pool_status

    attach(name, address=address)
    found = pool_status()
    columns = ("device", "kind", "state", "worker", "busy slots", "pins", "pid", "name", "memory")
    table = Table(*columns, title=f"pool {found.pool}")
    for device in found.devices:
        info = device.info
        worker = "" if device.worker is None else str(device.worker)
        slots = f"{len(device.running)} of {info.slots}" if info else ""
        pins = ", ".join(f"{count} {state}" for state, count in Counter(pin.state for pin in device.pins).items())
        process = (str(info.pid), info.device_name, f"{info.memory_bytes >> 20} MiB") if info else ("", "", "")
        table.add_row(str(device.index), device.kind, device.state, worker, slots, pins, *process)
    console.print(table)
    for device in found.devices:
        for pin in (pin for pin in device.pins if pin.state == "lost"):
            reason = pin.reason.partition("\n")[0]
            lost = f"[red]lost[/] on device {device.index}: {escape(pin.target)}: {escape(reason)}"
            console.print(lost, soft_wrap=True)
    console.print(f"policy {found.config.policy}, running {found.running}, queued {found.queued}, "
                  f"waiting for inputs {found.waiting}, functions: {', '.join(found.functions) or 'none'}")  # fmt: skip
    for held in found.quarantined:
        reason = held.reason.partition("\n")[0]
        what = f"[red]in quarantine[/] after {held.faults} faults: {escape(held.function)}: {escape(reason)}"
        console.print(what, soft_wrap=True)
    if found.broken:
        console.print(f"[red]broken:[/] {found.broken}")


ScenarioFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="as docs/simulator.md describes it")]


@app.command()
def simulate(
    scenario_file: ScenarioFile,
    json: Annotated[bool, typer.Option("--json", help="everything, for programs")] = False,
    rows: Annotated[int, typer.Option(min=0, help="dispatches to show")] = 20,
) -> None:
    """Run a scheduling policy in virtual time."""
    import msgspec

    from kaas.pool.simulation.reading import parse
    from kaas.pool.simulation.tables import tables
    from kaas.pool.simulator import simulate as simulated

    result = simulated(parse(scenario_file.read_bytes()))
    if json:
        print(msgspec.json.encode(result).decode())
        return
    for table in tables(result, rows):
        console.print(table)


@app.command()
def replay(
    record: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="what kaas.init(record=...) wrote")],
    policy: Annotated[str | None, typer.Option(help="instead of the one that was recorded")] = None,
) -> None:
    """Tell a fresh policy the events of a pool, and compare its decisions with the pool's."""
    from kaas.pool import recording

    told = recording.replay(record, policy)
    counts = f"{told.lives} lives, {told.events} events, {told.decisions} decisions"
    if told.difference is None:
        console.print(f"[green]identical[/]: {counts}")
        return
    found = told.difference
    console.print(f"[red]different[/] at line {found.line}, after {counts}")
    for name, said in (("event", found.event), ("expected", found.expected), ("got", found.got)):
        console.print(f"{name}: {escape(str(said))}", soft_wrap=True)
    raise typer.Exit(1)


@app.command()
def inspect(task_file: TaskFile) -> None:
    """Draw a kTask: its kernels, what they read and write, and its buffers."""
    print(draw.text(_load(task_file)))


@app.command()
def check(task_file: TaskFile) -> None:
    """Check a kTask against its code images and this machine's first device, without running it."""
    from kaas.executor import local

    task = _load(task_file)
    local.check(task)
    console.print(f"[green]ok[/] {escape(task.label)}: {len(task.kernels)} kernels, {len(task.libraries)} libraries")


@app.command()
def run(
    task_file: TaskFile,
    inputs: Annotated[list[str] | None, typer.Option("--input", help="name=file.npy; other files are bytes")] = None,
    scalars: Annotated[list[str] | None, typer.Option("--scalar", help="name=value")] = None,
    output: Annotated[Path | None, typer.Option(file_okay=False, help="folder for the outputs, as name.npy")] = None,
    local: Annotated[bool, typer.Option("--local/--ray", help="in this process, or through a pool on Ray")] = True,
    profile: Annotated[bool, typer.Option("--profile", help="kernel by kernel, without the graph")] = False,
) -> None:
    """Run a kTask and print how long its stages, or its kernels, took."""
    task = _load(task_file)
    arrays = {name: _read(Path(path)) for name, path in _pairs(inputs, "--input").items()}
    values = {name: _scalar(task, name, text) for name, text in _pairs(scalars, "--scalar").items()}
    outputs, stages, kernels = (_run_here if local else _run_on_ray)(task, arrays, values, profile)
    for name, array in outputs.items():
        console.print(f"{escape(name)}: {array.dtype}{escape(str(list(array.shape)))}")
        if output is not None:
            _save(output, name, array)
    table = Table("stage", "milliseconds")
    for stage, seconds in stages.items():
        table.add_row(stage, f"{seconds * 1e3:.3f}")
    console.print(table)
    if kernels:
        console.print(_kernel_table(kernels))


Outcome = tuple[Mapping[str, Any], Mapping[str, float], tuple["KernelTime", ...]]
"""Outputs, seconds of each stage, what each kernel took."""


def _run_here(task: KTask, arrays: Mapping[str, Any], scalars: Mapping[str, Any], profile: bool) -> Outcome:
    from kaas.executor import local

    result = local.run(task, arrays, scalars=scalars, profile=profile)
    return result.outputs, result.stats.stages, result.stats.kernels


def _run_on_ray(task: KTask, arrays: Mapping[str, Any], scalars: Mapping[str, Any], profile: bool) -> Outcome:
    from kaas import api
    from kaas.executor.profile import KernelTime

    opened = api.init()
    try:
        refs = api.invoke(task, arrays, scalars=scalars, profile=profile)
        refs = refs if isinstance(refs, tuple) else (refs,)
        names = [buffer.name for buffer in task.outputs]
        outputs = {name: ref.future().result() for name, ref in zip(names, refs, strict=True)}
        stats = api.stats()
        stages = {entry.stage: entry.p50_s for entry in stats.stages if entry.function == task.label}
        told = (entry for entry in stats.kernels if entry.function == task.label)
        kernels = tuple(KernelTime(entry.symbol, entry.index, entry.total_s, entry.launches) for entry in told)
    finally:
        if opened:
            api.shutdown()
    return outputs, stages, kernels


def _kernel_table(kernels: Sequence[KernelTime]) -> Table:
    """What all launches of each symbol took together, the dearest first."""
    launches: defaultdict[str, int] = defaultdict(int)
    seconds: defaultdict[str, float] = defaultdict(float)
    for kernel in kernels:
        launches[kernel.symbol] += kernel.launches
        seconds[kernel.symbol] += kernel.seconds
    total_s = sum(seconds.values()) or 1.0
    table = Table("kernel", "launches", "milliseconds", "share", title="one by one, without the graph")
    for symbol in sorted(seconds, key=seconds.__getitem__, reverse=True):
        took_s = seconds[symbol]
        table.add_row(escape(symbol), str(launches[symbol]), f"{took_s * 1e3:.3f}", f"{took_s / total_s:.1%}")
    return table


def _load(path: Path) -> KTask:
    return KTask.from_json(path.read_bytes())


def _pairs(entries: Sequence[str] | None, option: str) -> dict[str, str]:
    pairs = {}
    for entry in entries or ():
        name, separator, value = entry.partition("=")
        if not (name and separator and value):
            raise InvalidRequest(f"{option} takes name=value, not {entry!r}")
        pairs[name] = value
    return pairs


def _read(path: Path) -> Any:
    import numpy as np

    try:
        return np.load(path) if path.suffix == ".npy" else path.read_bytes()
    except (OSError, ValueError, EOFError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}") from error


def _save(folder: Path, name: str, array: Any) -> None:
    """An array as name.npy; of a dtype that NumPy's format lacks (bfloat16, float8), the bytes as unsigned integers."""
    import numpy as np

    if Path(name).name != name:
        raise InvalidRequest(f"output {name!r} cannot be a file's name", buffer=name)
    plain = array if array.dtype.isbuiltin == 1 else array.view(f"u{array.itemsize}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{name}.npy", plain)
    except OSError as error:
        raise InvalidRequest(f"cannot write {name!r} to {folder}: {error}", buffer=name) from error


def _scalar(task: KTask, name: str, text: str) -> Any:
    """The text as a value of the scalar's kind; names and ranges are checked where all scalars are."""
    kind = task.scalars.get(name, "")
    try:
        if kind == "boolean":
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        if is_integer_kind(kind):
            return int(text, 0)
        return complex(text) if kind.startswith("c") else float(text)
    except (KeyError, ValueError) as error:
        raise InvalidRequest(f"--scalar {name}: {text!r} is no {kind or 'number'}", scalar=name) from error


def main() -> None:
    """The command's entry: an error of KaaS is one line and exit status 1."""
    try:
        app()
    except KaasError as error:
        original = getattr(error, "cause", error)  # what Ray raises is a class made of its own error and ours
        Console(stderr=True, soft_wrap=True).print(f"[red]{type(original).__name__}[/]: {escape(error.message)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
