"""`kaas compile`: compiles a model's file to a .kaas file, with a compiler that is installed separately."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from kaas.cli.files import writable
from kaas.errors import InvalidRequest, MissingPackage

GROUP = "kaas.compilers"
"""Entry points that are called as `compile(path, examples, target=..., batch_sizes=..., name=..., tune=...,
progress=...)` and return a `kaas.CompiledModel`."""

console = Console(emoji=False)


@dataclass(frozen=True, slots=True)
class Shaped:
    """An example of an input that has a shape only."""

    shape: tuple[int, ...]
    dtype: None = None


class CompileStep(Protocol):
    """A compiler's report of its progress."""

    stage: str
    done: int
    total: int
    detail: str


def compile_model(
    model: Annotated[Path, typer.Argument(help="an ONNX file, or what torch.export.save wrote")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="by default the model's name, .kaas")] = None,
    target: Annotated[str, typer.Option(help='GPU architectures, joined by "+", and "ptx"')] = "sm_80+ptx",
    batch_sizes: Annotated[list[int] | None, typer.Option("--batch-size", min=1, help="may be given again")] = None,
    name: Annotated[str | None, typer.Option(help="of the model; by default the file's")] = None,
    shapes: Annotated[
        list[str] | None, typer.Option("--shape", help="name=1x384, of an input whose sizes the model leaves open")
    ] = None,
    tune: Annotated[int, typer.Option(min=0, help="trials of schedules to run on this machine's GPU")] = 0,
    compiler: Annotated[str | None, typer.Option(help="name, if several are installed")] = None,
) -> None:
    """Compile a model: a kTask for each batch size, their kernels and the constants, in one .kaas file."""
    target_file = output or Path(model.stem + ".kaas")
    writable(target_file)
    chosen, examples = _chosen(compiler), dict(map(_shaped, shapes or ()))
    with _bars() as report:
        options = {"target": target, "batch_sizes": batch_sizes or None, "name": name, "tune": tune}
        compiled = chosen.load()(model, examples, **options, progress=report)
    compiled.save(target_file)
    size = target_file.stat().st_size / (1 << 20)
    console.print(
        f"[green]written[/] {escape(str(target_file))}, {size:.1f} MiB: {escape(repr(compiled))}", soft_wrap=True
    )


def _chosen(name: str | None) -> EntryPoint:
    """Return the compiler of this name, or the only compiler.

    Raises:
        MissingPackage: no compiler is installed. InvalidRequest: none of this name, or several and no name.
    """
    installed = {found.name: found for found in entry_points(group=GROUP)}
    if not installed:
        raise MissingPackage(
            "no compiler is installed: pip install './compilers/tvm_backend[onnx]' in a clone of KaaS, or its wheel, "
            "'./kaas_gpu_tvm-….whl[onnx]' (docs/installing.md)",
            package="tvm_backend",
            install="./compilers/tvm_backend[onnx]",
        )
    if name in installed:
        return installed[name]
    if name is None and len(installed) == 1:
        return next(iter(installed.values()))
    listed = ", ".join(sorted(installed))
    wrong = "several compilers are installed" if name is None else f"there is no compiler {name!r}"
    raise InvalidRequest(f"{wrong}; --compiler is one of {listed}")


def _shaped(text: str) -> tuple[str, Shaped]:
    name, separator, sizes = text.rpartition("=")
    try:
        shape = tuple(int(size) for size in sizes.split("x"))
    except ValueError:
        shape = ()
    if not (separator and name and shape) or min(shape) < 1:
        raise InvalidRequest(f"--shape takes name=1x384, not {text!r}")
    return name, Shaped(shape)


@contextmanager
def _bars() -> Iterator[Callable[[CompileStep], None]]:
    """Show a bar for each stage, on stderr if it is a terminal."""
    columns: tuple[Any, ...] = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
    )  # fmt: skip
    stages: dict[str, TaskID] = {}
    with Bars(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:

        def report(step: CompileStep) -> None:
            if step.stage not in stages:
                stages[step.stage] = bars.add_task(step.stage, detail="")
            detail = escape(step.detail)
            bars.update(stages[step.stage], completed=step.done, total=step.total, detail=detail)

        yield report
