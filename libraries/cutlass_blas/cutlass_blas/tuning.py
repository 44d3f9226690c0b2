"""tune: the kernels that may serve a product, measured on a device; the fastest is what gemm takes from then on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutlass_blas import choice, gemms, records
from cutlass_blas.errors import BlasError, InvalidOption
from cutlass_blas.instances import Instance
from cutlass_blas.operands import KINDS
from cutlass_blas.records import Choice, Key
from kaas import Buffer, Device, KaasError, Kernel, KTask, Library, Out, Scalar, errors, run_local

Array = np.ndarray[Any, Any]
Operands = tuple[Buffer, Buffer, Buffer]

REPEATS = "repeats"
"""The scalar that says how often a candidate runs."""
ENOUGH_S = 0.02
"""Kernel time that one measurement should see."""
MOST_REPEATS = 200
MEASUREMENTS = 3
"""The fastest of these counts: all else that a machine does only adds time."""
VALUES = 1 << 20
"""Different random numbers in an operand; the rest repeats them."""

_NOTHING = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing(.param .u64 x) { ret; }\n"


class WrongResult(BlasError):
    """A candidate whose result is not the product; `wrong` is how many of its elements differ."""

    instance: str
    wrong: int


class TuningFailed(BlasError):
    """No candidate ran; `reasons` has what each of them said, by its name."""

    problem: str
    reasons: dict[str, str]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a candidate took.

    Fields:
        choice: the kernel, and into how many slices it cuts k.
        seconds: for the whole product.
    """

    choice: Choice
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A candidate that did not run, or gave something else than the product."""

    choice: Choice
    error: KaasError


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found for a product.

    Fields:
        device: its name. candidates: all of them, as the table ranks them: the first is what gemm took before.
    """

    key: Key
    device: str
    candidates: tuple[Measured | Failed, ...]

    @property
    def best(self) -> Measured:
        return min((each for each in self.candidates if isinstance(each, Measured)), key=lambda each: each.seconds)


Progress = Callable[[int, int, Measured | Failed], object]


def tune(
    shapes: Sequence[int] | Iterable[Sequence[int]],
    dtypes: str | Iterable[str] = "float32",
    *,
    out: str | None = None,
    count: int | None = None,
    trans_a: str = "n",
    trans_b: str = "n",
    layout: str = "row",
    compute: str | None = None,
    gelu: bool = False,
    arch: str | None = None,
    device: Device | int | None = None,
    most: int | None = None,
    progress: Progress | None = None,
) -> tuple[Tuned, ...]:
    """Measures the kernels that may serve these products, and keeps the fastest of each for `gemm`, here and in every
    process that starts later and shares this machine's records (`cutlass_blas.records`).

    A kernel that is not built yet is built. Each has to give exactly the product of small integers before it counts;
    times are then taken with random numbers, from contiguous matrices.

    Args:
        shapes: (m, n, k), or several.
        dtypes: of the factors, one or several: each shape is measured for each.
        out: dtype of c, as `gemm` takes it; None: that of the factors. count: of a batch of products.
        trans_a, trans_b, layout, compute: as `gemm` takes them. gelu: with GELU as the epilogue, which has kernels of
            its own; all other epilogues go by what is measured without.
        arch: what `gemm` is told where the result shall count. None: the device's own, and what gemm chooses for
            unless it is told.
        device: as `kaas.run_local` takes it; None: the first GPU. The software GPU is measured only if it is named,
            since what is fast there tells nothing about a GPU.
        most: candidates to measure, the likeliest first; None: all.
        progress: called after each with its number, how many there are, and what came of it.

    Raises:
        kaas.errors.DeviceUnavailable: no GPU.
        kaas.errors.DeviceLost: a candidate ended the device.
        TuningFailed: no candidate of a product ran.
        RecordsUnavailable: the result cannot be kept.
        BlasError: as `gemm` raises them, and for shapes that are none.
    """
    where = Device("gpu") if device is None else device
    name, own = _opened(where)
    archs = tuple(dict.fromkeys([own, choice.architecture(None)] if arch is None else [choice.architecture(arch)]))
    options: dict[str, Any] = {"trans_a": trans_a, "trans_b": trans_b, "layout": layout, "compute": compute}
    options |= {"epilogue": "gelu"} if gelu else {}
    found = []
    for m, n, k in _shapes(shapes):
        for dtype in (dtypes,) if isinstance(dtypes, str) else dtypes:
            operands = _operands(m, n, k, str(dtype), out, count, trans_a, trans_b)
            keys = [gemms.key_of(*operands, **options, arch=each) for each in archs]
            tuned = _tuned(keys[0], name, operands, options, where, most, progress)
            for key in keys:
                records.store(key, tuned.best.choice, name, tuned.best.seconds)
            found.append(tuned)
    gemms.forget()
    return tuple(found)


def _shapes(given: Any) -> list[tuple[int, int, int]]:
    several = list(given)
    several = [several] if several and isinstance(several[0], int) else [list(shape) for shape in several]
    for shape in several:
        if len(shape) != 3 or not all(type(size) is int and size > 0 for size in shape):
            words = f"a shape to tune for is three positive integers (m, n, k), not {tuple(shape)!r}"
            raise InvalidOption(words, option="shapes", value=repr(tuple(shape)), known=())
    return [(m, n, k) for m, n, k in several]


def _operands(
    m: int, n: int, k: int, dtype: str, out: str | None, count: int | None, trans_a: str, trans_b: str
) -> Operands:
    if dtype not in KINDS:
        words = f"no products of {dtype!r}; there are those of {', '.join(KINDS)}"
        raise InvalidOption(words, option="dtypes", value=repr(dtype), known=tuple(KINDS))
    batch = () if count is None else (count,)
    first = (m, k) if trans_a in ("n", "N") else (k, m)
    second = (k, n) if trans_b in ("n", "N") else (n, k)
    a, b = Buffer("a", (*batch, *first), dtype), Buffer("b", (*batch, *second), dtype)
    return a, b, Buffer("c", (*batch, m, n), out or dtype)


def _opened(device: Device | int) -> tuple[str, str]:
    """The name of the device and its architecture.

    Raises:
        DeviceUnavailable
    """
    x = Buffer("x", 1)
    run_local(KTask([Kernel(Library.from_ptx(_NOTHING), "nothing", 1, 1, [Out(x)])], [x]), device=device)
    from cuda.core import Device as CudaDevice  # only now is the driver loaded, and on the device that was asked for

    opened = CudaDevice(device if isinstance(device, int) else 0)
    return opened.name, choice.architecture(f"sm_{opened.arch}")


def _tuned(
    key: Key,
    name: str,
    operands: Operands,
    options: dict[str, Any],
    device: Device | int,
    most: int | None,
    progress: Progress | None,
) -> Tuned:
    picks = choice.candidates(key)[:most]
    wanted = _product(operands, options)
    outcomes: list[Measured | Failed] = []
    for number, (instance, slices) in enumerate(picks, 1):
        chosen = Choice(instance.name, slices)
        try:
            outcome: Measured | Failed = Measured(chosen, _seconds(instance, slices, operands, options, device, wanted))
        except errors.DeviceLost:
            raise  # nothing runs on it any more
        except KaasError as error:
            outcome = Failed(chosen, error)
        outcomes.append(outcome)
        if progress is not None:
            progress(number, len(picks), outcome)
    if not any(isinstance(outcome, Measured) for outcome in outcomes):
        failures = {each.choice.instance: each.error.message for each in outcomes if isinstance(each, Failed)}
        words = "; ".join(f"{instance}: {reason}" for instance, reason in failures.items())
        raise TuningFailed(f"no kernel ran for {key}: {words}", problem=str(key), reasons=failures)
    return Tuned(key, name, tuple(outcomes))


def _seconds(
    instance: Instance,
    slices: int,
    operands: Operands,
    options: dict[str, Any],
    device: Device | int,
    wanted: Array,
) -> float:
    a, b, c = operands
    kernels = gemms.gemm(a, b, c, **options, _chosen=(instance, slices))
    task = KTask(kernels, [c], iterations=Scalar(REPEATS, "i32"), name=instance.name)

    def run(values: Callable[[Buffer], Array], repeats: int) -> tuple[Array, float]:
        times: list[Any] = []
        inputs = {buffer.name: values(buffer) for buffer in (a, b)}
        made = run_local(task, inputs, scalars={REPEATS: repeats}, device=device, profile=times.extend)
        return made[c.name], sum(time.seconds for time in times) / repeats

    made, _ = run(_integers, 1)
    _check(instance, made, wanted, exact="epilogue" not in options)
    _, first = run(_random, 1)
    repeats = max(1, min(MOST_REPEATS, int(ENOUGH_S / max(first, 1e-7))))
    return min(run(_random, repeats)[1] for _ in range(MEASUREMENTS))


# --- numbers


def _check(instance: Instance, made: Array, wanted: Array, *, exact: bool) -> None:
    """
    Raises:
        WrongResult: elements that are not what they should be; those that are not exact (GELU's) may differ a little.
    """
    if exact:
        same = made == wanted.astype(made.dtype)
    else:
        same = np.isclose(made.astype(np.float64), wanted, rtol=0.02, atol=0.02)
    if not same.all():
        wrong = int(same.size - np.count_nonzero(same))
        words = f"{instance.name} gives {wrong} of {same.size} elements wrong"
        raise WrongResult(words, instance=instance.name, wrong=wrong)


def _integers(buffer: Buffer) -> Array:
    """From -2 to 2, in no pattern that a shift would keep: exact in every dtype, as are their sums up to k of 2^22."""
    rng = np.random.default_rng(sum(buffer.name.encode()))
    return _filled(buffer, rng.integers(-2, 3, VALUES) + 1j * rng.integers(-2, 3, VALUES))


def _random(buffer: Buffer) -> Array:
    rng = np.random.default_rng(0)
    return _filled(buffer, rng.uniform(-1, 1, VALUES) + 1j * rng.uniform(-1, 1, VALUES))


def _filled(buffer: Buffer, values: Array) -> Array:
    """The real parts unless the buffer holds complex numbers."""
    import ml_dtypes

    dtype = np.dtype(ml_dtypes.bfloat16 if buffer.dtype == "bfloat16" else buffer.dtype)
    some = values if dtype.kind == "c" else values.real
    return np.resize(some.astype(dtype), math.prod(buffer.shape)).reshape(buffer.shape)


def _product(operands: Operands, options: dict[str, Any]) -> Array:
    """What comes of the integers, by NumPy."""
    a, b, c = operands
    is_complex = a.dtype.startswith("complex")
    exact = np.complex128 if is_complex else np.float64
    column = options["layout"] == "column"
    first = _op(_logical(_integers(a), column), options["trans_a"]).astype(exact)
    second = _op(_logical(_integers(b), column), options["trans_b"]).astype(exact)
    product = first @ second
    if options.get("epilogue") == "gelu":
        values, places = np.unique(product, return_inverse=True)
        curve = np.array([0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in values])
        product = curve[places].reshape(product.shape)
    made: Array = _as_lying(product, column).reshape(c.shape)
    return made


def _logical(memory: Array, column: bool) -> Array:
    """The matrices that lie in memory of their shape, in one layout or the other."""
    if not column:
        return memory
    *batch, rows, columns = memory.shape
    return memory.reshape(*batch, columns, rows).swapaxes(-1, -2)


def _as_lying(matrices: Array, column: bool) -> Array:
    return np.ascontiguousarray(matrices.swapaxes(-1, -2)) if column else matrices


def _op(matrices: Array, letter: str) -> Array:
    match letter.lower():
        case "t":
            return matrices.swapaxes(-1, -2)
        case "c":
            return matrices.swapaxes(-1, -2).conj()
    return matrices
