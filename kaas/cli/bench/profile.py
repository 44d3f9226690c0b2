"""`kaas profile`: what a function does with shares of a device, and so what share it needs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from kaas.bench.interrupt import interruptible
from kaas.cli.bench.target import loaded_from, made_of
from kaas.cli.comparisons import check_plot
from kaas.cli.files import no_device, pairs_of, scalar_value, unlike, writable
from kaas.cli.observe import plain, print_whole
from kaas.errors import InvalidRequest, MissingScalar
from kaas.ktask.draw import printable

if TYPE_CHECKING:
    from kaas.api.function import Function
    from kaas.bench.profiling.profiler import ProfiledVariant, Profiler
    from kaas.config import Device, FunctionProfile

SMS, QUOTA, QUOTA_BESIDE = "0.06..1", "0.2..1", "0.1..0.5"
"""The shares by default; the last one beside other programs, to which it leaves half of the time."""


def profile(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FUNCTION",
            help="a kTask (KTask.to_json), a model (.kaas), or module:function that makes one or registers it with its "
            "constants",
        ),
    ],
    sms: Annotated[str, typer.Option(help="parts of the SMs: a range doubles, 0.12,0.24 are these two")] = SMS,
    quota: Annotated[
        str | None,
        typer.Option(
            help=f"parts of the time: a range has steps of its first; by default {QUOTA}, in a pool that runs "
            f"{QUOTA_BESIDE}"
        ),
    ] = None,
    batch: Annotated[str | None, typer.Option(help="of a model's variants, as 1,2,4; by default all")] = None,
    device: Annotated[
        str | None,
        typer.Option(help="gpu, software, or a file (TOML) with the model of a software device; by default a GPU"),
    ] = None,
    given: Annotated[
        Path | None,
        typer.Option("--inputs", exists=True, dir_okay=False, callback=no_device, help="arrays by name, .npz or .json"),
    ] = None,
    scalars: Annotated[list[str] | None, typer.Option("--scalar", help="name=value")] = None,
    profiles: Annotated[
        Path,
        typer.Option(dir_okay=False, callback=writable, help="keeps each point; what it has is not measured again"),
    ] = Path("profiles.jsonl"),
    fresh: Annotated[bool, typer.Option(help="measure again what the file has")] = False,
    plot: Annotated[
        Path | None, typer.Option(dir_okay=False, callback=writable, help="a PNG of throughput over SMs; matplotlib")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", "--pool", help="of a pool that runs; by default 'kaas' with --ray, else one of its own"),
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray/--no-ray", help="the running pool on Ray, or one of plain processes")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="one line, for programs")] = False,
) -> None:
    """Measure the throughput and the latency of a function over shares: parts of a device's SMs and of its time.

    A row over SMs ends where it is flat. Of the parts of the time the first and the last are measured, and the others
    only if these do not lie on a line. Each point goes into the file of profiles at once, from which a later run goes
    on, and which `kaas.Config(profiles=...)` takes. In a pool that runs the function has the share that is measured,
    beside the requests of others.
    """
    import msgspec

    from kaas.bench.profiling.grid import ProfileGrid, parts, whole_numbers
    from kaas.bench.profiling.profiler import Profiler, devices_here, pool_of, profiled_variants
    from kaas.bench.service import as_registered
    from kaas.profiles import read_profiles

    check_plot(plot)
    unlike(profiles, given, Path(target))
    beside = ray or name is not None
    asked_sms = parts(sms, "--sms", doubling=True)
    quotas = parts(quota or (QUOTA_BESIDE if beside else QUOTA), "--quota")
    batches = None if batch is None else whole_numbers(batch, "--batch")
    if profiles.exists():
        read_profiles(profiles)  # before the measurement for it
    own = None if beside else _device(device)
    if beside and device is not None:
        raise InvalidRequest("--device is of a pool of its own; a pool that runs has its devices")
    loaded = loaded_from(target, None)
    assert not isinstance(loaded, str), "a name needs a server"
    tell = partial(print, file=sys.stderr)
    found: list[tuple[ProfiledVariant, FunctionProfile]] = []
    with pool_of(own, name, ray=ray), interruptible() as stop:
        from kaas.api.function import Function

        function: Function = as_registered(made_of(target, loaded, Function))
        chosen = profiled_variants(function, batches)
        if given is not None and len(chosen) > 1:
            raise InvalidRequest("--inputs has the arrays of one batch: name it by --batch")
        inputs = [_inputs(each, scalars, given) for each in chosen]
        for each, values in zip(chosen, inputs, strict=True):
            each.function.call(**values).result()  # compiles, and shows mistakes
        devices = devices_here()
        profiler = Profiler(profiles, devices, ProfileGrid(devices.granted(asked_sms, tell), quotas), fresh, stop, tell)
        for each, values in zip(chosen, inputs, strict=True):
            if not stop() and (kept := profiler.run(each, values)) is not None:
                found.append((each, kept))
        ended_early = stop()
    if plot is not None and found:
        from kaas.bench.profiling.figure import draw_points

        draw_points([(_title(each), _points(each, kept)) for each, kept in found], plot)
    if json:
        print(msgspec.json.encode(_told(profiler, found)).decode())
    else:
        _show(profiler, found)
    if ended_early:
        tell(f"ended early: the same command goes on with what {printable(str(profiles))} has")
        raise typer.Exit(1)


def _device(text: str | None) -> Device:
    """Return the device of a pool of its own.

    Raises:
        InvalidRequest: the text is no kind of device, and no file of a model.
    """
    from kaas.config import DEVICE_KINDS, Device
    from kaas.executor.device.device import gpu_count
    from softgpu import Model

    if text is None:
        return Device("gpu" if gpu_count() else "software")
    if text in DEVICE_KINDS:
        return Device(text)
    try:
        return Device(model=Model.from_file(text))
    except (OSError, ValueError) as error:
        message = f"--device is gpu, software, or a file with the model of a software device: {text!r}: {error}"
        raise InvalidRequest(message) from error


def _inputs(variant: ProfiledVariant, scalars: Sequence[str] | None, given: Path | None) -> Mapping[str, Any]:
    """Return the inputs and the scalars of each request.

    Raises:
        InvalidRequest: the file does not have them. MissingScalar
    """
    from kaas.bench.payloads import from_file, payload

    task = variant.function.task
    named = pairs_of(scalars, "--scalar", tuple(task.scalars))
    values = {each: scalar_value(task, each, text) for each, text in named.items()}
    if missing := [each for each in task.scalars if each not in values]:
        raise MissingScalar(f"scalar {missing[0]!r} has no value: --scalar {missing[0]}=...", scalar=missing[0])
    taken = variant.function.inputs
    return {**payload(taken), **(from_file(given, taken) if given else {}), **values}


def _title(variant: ProfiledVariant) -> str:
    return variant.label if not variant.family else f"{variant.family}, batch {variant.batch}"


def _points(variant: ProfiledVariant, kept: FunctionProfile) -> list[Any]:
    return [each for each in kept.points if each.batch == variant.batch]


def _told(profiler: Profiler, found: Sequence[tuple[ProfiledVariant, FunctionProfile]]) -> dict[str, Any]:
    """Return the figures as programs read them."""
    extent = profiler.devices.extent
    functions = [
        {"function": each.key, "label": each.label, "batch": each.batch, "points": _points(each, kept)}
        for each, kept in found
    ]
    device = {"kind": profiler.devices.kind, "sms": extent.sms, "sm_step": extent.step}
    return {"profiles": str(profiler.file), "device": device, "functions": functions}


def _show(profiler: Profiler, found: Sequence[tuple[ProfiledVariant, FunctionProfile]]) -> None:
    """Print the figures; a point without requests lies on the line between others."""
    for each, kept in found:
        heads = ("SMs", "part", "time", "requests/s", "p50 (s)", "p99 (s)", "device bytes", "measured")
        table = Table(*heads, title=plain(_title(each)), title_justify="left")
        for point in _points(each, kept):
            figures = (point.rate_per_s, point.p50_s, point.p99_s)
            table.add_row(
                profiler.shown(point.sms),
                f"{point.sms:.3g}",
                f"{point.quota:g}",
                *(f"{figure:.4g}" for figure in figures),
                f"{point.device_bytes:,}",
                str(point.requests or "on the line"),
            )
        print_whole(table)
