"""The commands on a file of a kTask or a model: `kaas inspect`, `check` and `run`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from kaas.errors import InvalidRequest
from kaas.ktask import draw, images
from kaas.ktask.dtypes import is_integer_kind
from kaas.ktask.graph import KTask
from kaas.ktask.variant import Variant, described
from kaas.models import model_file
from kaas.models.model import CompiledModel
from kaas.output_files import output_file

if TYPE_CHECKING:
    from kaas.executor.profile import KernelTime

console = Console(emoji=False)

T = TypeVar("T", Path, Path | None)


def no_device(path: T) -> T:
    """Refuse a device such as /dev/zero in place of a file: to read it whole has no end. A callback of options."""
    if path is not None and (path.is_char_device() or path.is_block_device()):
        raise typer.BadParameter(f"{path} is a device, not a file")
    return path


def writable(path: T) -> T:
    """Refuse a name under which no file can be written, before the work for its content. A callback of options.

    Raises:
        InvalidRequest: `output_file` refuses the name, or its folder is missing.
    """
    if path is not None and not (folder := output_file(path).parent).is_dir():
        raise InvalidRequest(f"{path}: there is no folder {folder}")
    return path


def unlike(output: Path | None, *given: Path | None) -> None:
    """Refuse to write a file that is read.

    Raises:
        InvalidRequest: they are one file.
    """
    if output is None or not output.exists():
        return
    for each in given:
        if each is not None and each.exists() and output.samefile(each):  # module:function is no file
            raise InvalidRequest(f"cannot write {output}: it is read")


GivenFile = Annotated[
    Path,
    typer.Argument(
        exists=True, dir_okay=False, callback=no_device, help="a kTask as KTask.to_json writes it, or a model (.kaas)"
    ),
]
RunOutcome = tuple[Mapping[str, Any], Mapping[str, float], tuple["KernelTime", ...]]
"""Outputs, seconds of each stage, times of the kernels."""


def inspect(file: GivenFile) -> None:
    """Show a kTask (its kernels, what they read and write, its buffers) or a model (its variants and kernels)."""
    match load_file(file):
        case KTask() as task:
            print(draw.text(task))
        case CompiledModel() as model:
            _show(model)


def check(file: GivenFile) -> None:
    """Check a kTask, or all of a model's, against the code images and this machine's first device, without running."""
    from kaas.executor import local

    loaded = load_file(file)
    for task in (loaded,) if isinstance(loaded, KTask) else (variant.task for variant in loaded.variants):
        local.check(task)
        counts = f"{len(task.kernels)} kernels, {len(task.libraries)} libraries"
        console.print(f"[green]ok[/] {escape(draw.printable(task.label))}: {counts}")


def run(
    file: GivenFile,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="name=file.npy, or the file only if there is one input; other files are bytes"),
    ] = None,
    scalars: Annotated[list[str] | None, typer.Option("--scalar", help="name=value")] = None,
    output: Annotated[Path | None, typer.Option(file_okay=False, help="folder for the outputs, as name.npy")] = None,
    local: Annotated[bool, typer.Option("--local/--ray", help="in this process, or through a pool on Ray")] = True,
    profile: Annotated[bool, typer.Option("--profile", help="kernel by kernel, without the graph")] = False,
) -> None:
    """Run a kTask or a model, and print how long its stages, or its kernels, took."""
    loaded = load_file(file)
    taken = loaded.inputs if isinstance(loaded, CompiledModel) else tuple(buffer.name for buffer in loaded.inputs)
    arrays = {name: _read(Path(path)) for name, path in pairs_of(inputs, "--input", taken).items()}
    scalar_texts = pairs_of(scalars, "--scalar")
    if isinstance(loaded, CompiledModel):
        if scalar_texts:
            raise InvalidRequest(f"model {loaded.name!r} has no scalars", scalar=next(iter(scalar_texts)))
        outcome = (_model_here if local else _model_on_ray)(loaded, arrays, profile)
    else:
        values = {name: scalar_value(loaded, name, text) for name, text in scalar_texts.items()}
        outcome = (_task_here if local else _task_on_ray)(loaded, arrays, values, profile)
    _print(outcome, output)


# --- reading


def load_file(path: Path) -> KTask | CompiledModel:
    """Return the kTask or model of a file, by its content."""
    if model_file.is_model(path):
        return CompiledModel.load(path)
    data = path.read_bytes()
    if not data.lstrip().startswith(b"{"):
        raise InvalidRequest(
            f"{path} is neither a model (a zip file, as `kaas compile` and CompiledModel.save write it) nor a kTask in "
            "JSON (as KTask.to_json writes it)"
        )
    return KTask.from_json(data)


def pairs_of(entries: Sequence[str] | None, option: str, names: Sequence[str] = ()) -> dict[str, str]:
    """Return the values of an option by name. names: if there is only one, the option may leave it out."""
    pairs = {}
    for entry in entries or ():
        name, separator, value = entry.partition("=")
        if not separator and len(names) == 1:
            name, separator, value = names[0], "=", entry
        if not (name and separator and value):
            raise InvalidRequest(f"{option} takes name=value, not {entry!r}")
        if name in pairs:
            raise InvalidRequest(f"{option}: {name!r} is given twice")
        pairs[name] = value
    return pairs


def _read(path: Path) -> Any:
    import numpy as np

    try:
        if path.suffix != ".npy":
            return path.read_bytes()
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)  # np.load takes archives of arrays too
    except (OSError, ValueError, EOFError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}") from error


class HasScalars(Protocol):
    """A kTask, or the description of one at a server. scalars: kinds by name."""

    @property
    def scalars(self) -> Mapping[str, str]:
        """Kinds by name."""
        ...


def scalar_value(task: HasScalars, name: str, text: str) -> Any:
    """Return a text as a value of the scalar's kind. The run checks ranges.

    Raises:
        InvalidRequest: the task has no such scalar, or the text is no value of its kind.
    """
    if name not in task.scalars:
        those = f"there is no such scalar, only {', '.join(task.scalars)}" if task.scalars else "there are no scalars"
        raise InvalidRequest(f"--scalar {name}: {those}", scalar=name)
    kind = task.scalars[name]
    try:
        if kind == "boolean":
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        if is_integer_kind(kind):
            return int(text, 0)
        return complex(text) if kind.startswith("c") else float(text)
    except (KeyError, ValueError) as error:
        raise InvalidRequest(f"--scalar {name}: {text!r} is no {kind or 'number'}", scalar=name) from error


# --- running


def _task_here(task: KTask, arrays: Mapping[str, Any], scalars: Mapping[str, Any], profile: bool) -> RunOutcome:
    from kaas.executor import local

    result = local.run(task, arrays, scalars=scalars, profile=profile)
    return result.outputs, result.stats.stages, result.stats.kernels


def _model_here(model: CompiledModel, arrays: Mapping[str, Any], profile: bool) -> RunOutcome:
    result = model.run(arrays, profile=profile)
    return result.outputs, result.stats.stages, result.stats.kernels


def _task_on_ray(task: KTask, arrays: Mapping[str, Any], scalars: Mapping[str, Any], profile: bool) -> RunOutcome:
    from kaas.api import program

    opened = program.init()
    try:
        return _collected(task, program.invoke(task, arrays, scalars=scalars, profile=profile))
    finally:
        if opened:
            program.shutdown()


def _model_on_ray(model: CompiledModel, arrays: Mapping[str, Any], profile: bool) -> RunOutcome:
    from kaas.api import program

    opened = program.init()
    try:
        return _collected(model.choose(arrays).task, program.invoke(model.register(), arrays, profile=profile))
    finally:
        if opened:
            program.shutdown()


def _collected(task: KTask, refs: Any) -> RunOutcome:
    from kaas.api import program
    from kaas.executor.profile import KernelTime

    refs = refs if isinstance(refs, tuple) else (refs,)
    names = [buffer.name for buffer in task.outputs]
    outputs = {name: ref.future().result() for name, ref in zip(names, refs, strict=True)}
    stats = program.stats()
    stages = {entry.stage: entry.p50_s for entry in stats.stages if entry.function == task.label}
    kernels = (entry for entry in stats.kernels if entry.function == task.label)
    return (
        outputs,
        stages,
        tuple(KernelTime(entry.symbol, entry.index, entry.total_s, entry.launches) for entry in kernels),
    )


# --- printing


def _print(outcome: RunOutcome, folder: Path | None) -> None:
    outputs, stages, kernels = outcome
    for name, array in outputs.items():
        console.print(f"{escape(draw.printable(name))}: {array.dtype}{escape(str(list(array.shape)))}")
        if folder is not None:
            _save(folder, name, array)
    table = Table("stage", "milliseconds")
    for stage, seconds in stages.items():
        table.add_row(stage, f"{seconds * 1e3:.3f}")
    console.print(table)
    if kernels:
        console.print(_kernel_table(kernels))


def _kernel_table(kernels: Sequence[KernelTime]) -> Table:
    """Return the total time of each symbol's launches, longest first."""
    launches: defaultdict[str, int] = defaultdict(int)
    seconds: defaultdict[str, float] = defaultdict(float)
    for kernel in kernels:
        launches[kernel.symbol] += kernel.launches
        seconds[kernel.symbol] += kernel.seconds
    total_s = sum(seconds.values()) or 1.0
    table = Table(_symbols(), "launches", "milliseconds", "share", title="one by one, without the graph")
    for symbol in sorted(seconds, key=seconds.__getitem__, reverse=True):
        took_s = seconds[symbol]
        table.add_row(
            escape(draw.printable(symbol)), str(launches[symbol]), f"{took_s * 1e3:.3f}", f"{took_s / total_s:.1%}"
        )
    return table


def _symbols() -> Column:
    """Return a column of kernels. It folds long names of compilers, and shows all of each."""
    return Column("kernel", overflow="fold")


def _save(folder: Path, name: str, array: Any) -> None:
    """Save an array as name.npy; a dtype that NumPy's format lacks (bfloat16, float8) as unsigned integers."""
    import numpy as np

    if Path(name).name != name:
        raise InvalidRequest(f"output {name!r} cannot be a file's name", buffer=name)
    plain = array if array.dtype.isbuiltin == 1 else array.view(f"u{array.itemsize}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        np.save(output_file(folder / f"{name}.npy"), plain)
    except OSError as error:
        raise InvalidRequest(f"cannot write {name!r} to {folder}: {error}", buffer=name) from error


def _show(model: CompiledModel) -> None:
    from kaas.executor.plan.plan import arena_bytes

    code = ", ".join(images.described(image) for image in model.library.images)
    constants = f"{len(model.constants)} constants of {model.constant_bytes:,} bytes"
    lines = [f"model {model.name}: {constants}; {code}"]
    lines += [f"  {name}: {text}" for name, text in sorted(model.about.items())]
    for variant in model.variants:
        task = variant.task
        kernels = f"{len({kernel.symbol for kernel in task.kernels})} kernels in {len(task.kernels)} launches"
        read_bytes, arena = sum(buffer.nbytes for buffer in variant.constants), arena_bytes(task, variant.constants)
        lines.append(f"variant {task.label}: {kernels}, {read_bytes:,} bytes of constants, {arena:,} bytes of arena")
        lines += [f"  input  {buffer.name}: {described(buffer)}" for buffer in variant.inputs]
        lines += [f"  output {buffer.name}: {described(buffer)}" for buffer in task.outputs]
    print(*map(draw.printable, lines), sep="\n")
    console.print(_launch_table(model.variants))


def _launch_table(variants: Sequence[Variant]) -> Table:
    """Return the number of launches of each kernel by each variant, with the dimensions of the first launch."""
    launches: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(variants))
    first: dict[str, str] = {}
    for number, variant in enumerate(variants):
        for kernel in variant.task.kernels:
            launches[kernel.symbol][number] += 1
            first.setdefault(kernel.symbol, f"{draw.dims(kernel.grid)}, {draw.dims(kernel.block)}")
    counted = [escape(draw.printable(variant.task.label)) for variant in variants]
    table = Table(_symbols(), *counted, "grid, block", title="launches of each kernel, in the order of the first")
    for symbol, counts in launches.items():
        table.add_row(escape(draw.printable(symbol)), *map(str, counts), first[symbol])
    return table
