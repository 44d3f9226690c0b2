"""tune: measures the kernels that fit a product on a device; gemm takes the fastest one from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cutlass_blas import choice, gemms, records
from cutlass_blas.errors import BlasError, InvalidOption
from cutlass_blas.instances import Instance
from cutlass_blas.operands import KINDS, natural
from cutlass_blas.records import Choice, Key
from cutlass_blas.trials import Array, Operands, Trial, trial
from kaas import Buffer, Device, KaasError, Kernel, KTask, Library, Out, Scalar, errors, run_local

REPEATS = "repeats"
"""The scalar with the number of times that a candidate runs."""
ENOUGH_S = 0.02
"""Kernel time that one measurement should cover."""
MOST_REPEATS = 200
MEASUREMENTS = 3
"""The number of measurements. The fastest counts: other work of the machine only adds time."""

_NOTHING = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing(.param .u64 x) { ret; }\n"


class TuningFailed(BlasError):
    """No candidate ran; `reasons` has each candidate's error, by its name."""

    problem: str
    reasons: dict[str, str]


@dataclass(frozen=True, slots=True)
class Measured:
    """The time of a candidate.

    Fields:
        choice: the kernel, and the number of slices that it cuts k into.
        seconds: for the whole product.
    """

    choice: Choice
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A candidate that did not run, or gave a wrong result."""

    choice: Choice
    error: KaasError


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of tuning a product.

    Fields:
        device: its name. candidates: all of them, as the table ranks them; gemm took the first one before.
    """

    key: Key
    device: str
    candidates: tuple[Measured | Failed, ...]

    @property
    def best(self) -> Measured:
        """The fastest candidate that ran."""
        return min((each for each in self.candidates if isinstance(each, Measured)), key=lambda each: each.seconds)


OnProgress = Callable[[int, int, Measured | Failed], object]


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
    device: Device | None = None,
    most: int | None = None,
    progress: OnProgress | None = None,
) -> tuple[Tuned, ...]:
    """Measure the kernels that fit these products, and keep the fastest of each for `gemm`.

    The choice counts in this process, and in every process that starts later and shares this machine's records
    (`cutlass_blas.records`). Missing kernels are built. A kernel counts only if it gives exactly the product of small
    integers; its time is then measured with random numbers, in contiguous matrices.

    Args:
        shapes: (m, n, k), or several.
        dtypes: of the factors, one or several: each shape is measured for each dtype.
        out: dtype of c, as `gemm` takes it; None: that of the factors.
        count: the size of a batch of products; None: no batch.
        trans_a: as `gemm` takes it.
        trans_b: as `gemm` takes it.
        layout: as `gemm` takes it.
        compute: as `gemm` takes it.
        gelu: measure with GELU as the epilogue, which has its own kernels; all other epilogues use the results without.
        arch: the `arch` of gemm for which the result counts. None: the device's own architecture, and gemm's default.
        device: None is the first GPU. Times of the software GPU say nothing about other devices: it is measured only if
            it is named, and its result is kept only if arch is named too.
        most: the number of candidates to measure, the likeliest first; None: all.
        progress: called after each candidate with its number, the number of candidates, and its result.

    Returns:
        The result for each shape and dtype.

    Raises:
        kaas.errors.DeviceUnavailable: no GPU.
        kaas.errors.DeviceLost: a candidate ended the device.
        TuningFailed: no candidate of a product ran.
        RecordsUnavailable: the result cannot be kept.
        BlasError: as `gemm` raises them, or a shape is not three positive integers.
    """
    where = Device("gpu") if device is None else device
    if not isinstance(where, Device):
        raise InvalidOption(f"device is a kaas.Device, not {where!r}", option="device", value=repr(where), known=())
    for option, value in (("count", count), ("most", most)):
        if value is not None and not natural(value):
            words = f"{option} is a positive integer, not {value!r}"
            raise InvalidOption(words, option=option, value=repr(value), known=())
    wanted = _shapes(shapes)
    name, own = _opened(where)
    archs = dict.fromkeys([own, choice.architecture(None)] if arch is None else [choice.architecture(arch)])
    kept = arch is not None or where.kind != "software"
    options: dict[str, Any] = {"trans_a": trans_a, "trans_b": trans_b, "layout": layout, "compute": compute}
    options |= {"epilogue": "gelu"} if gelu else {}
    found = []
    for m, n, k in wanted:
        for dtype in (dtypes,) if isinstance(dtypes, str) else dtypes:
            operands = _operands(m, n, k, str(dtype), out, count, trans_a, trans_b)
            keys = [gemms.key_of(*operands, **options, arch=each) for each in archs]
            tuned = _tuned(keys[0], name, operands, options, where, most, progress)
            for key in keys if kept else ():
                records.store(key, tuned.best.choice, name, tuned.best.seconds)
            found.append(tuned)
    gemms.forget()
    return tuple(found)


def _shapes(given: Any) -> list[tuple[int, int, int]]:
    several = _listed(given)
    if several and natural(several[0]) is not None:
        several = [several]
    found = []
    for shape in several:
        sizes = [natural(size) for size in _listed(shape)]
        match sizes:
            case [int(m), int(n), int(k)] if m and n and k:
                found.append((m, n, k))
            case _:
                words = f"a shape to tune for is three positive integers (m, n, k), not {shape!r}"
                raise InvalidOption(words, option="shapes", value=repr(shape), known=())
    return found


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, Iterable) else [given]


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


def _opened(device: Device) -> tuple[str, str]:
    """Return the name of the device and its architecture.

    Raises:
        DeviceUnavailable: there is no such device.
    """
    x = Buffer("x", 1)
    run_local(KTask([Kernel(Library.from_ptx(_NOTHING), "nothing", 1, 1, [Out(x)])], [x]), device=device)
    from cuda.core import Device as CudaDevice  # the run above has loaded the driver of the chosen device

    opened = CudaDevice(0)
    return opened.name, choice.architecture(f"sm_{opened.arch}")


def _tuned(
    key: Key,
    name: str,
    operands: Operands,
    options: dict[str, Any],
    device: Device,
    most: int | None,
    progress: OnProgress | None,
) -> Tuned:
    picks = choice.candidates(key)[:most]
    numbers = trial(operands, options)
    outcomes: list[Measured | Failed] = []
    for number, (instance, slices) in enumerate(picks, 1):
        chosen = Choice(instance.name, slices)
        try:
            outcome: Measured | Failed = Measured(
                chosen, _seconds(instance, slices, operands, options, device, numbers)
            )
        except errors.DeviceLost:
            raise  # no other candidate can run on it
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
    device: Device,
    numbers: Trial,
) -> float:
    a, b, c = operands
    kernels = gemms.gemm(a, b, c, **options, _chosen=(instance, slices))
    task = KTask(kernels, [c], iterations=Scalar(REPEATS, "i32"), name=instance.name)

    def run(inputs: dict[str, Array], repeats: int) -> tuple[Array, float]:
        times: list[Any] = []
        made = run_local(task, inputs, scalars={REPEATS: repeats}, device=device, profile=times.extend)
        return made[c.name], sum(time.seconds for time in times) / repeats

    made, _ = run(numbers.integers, 1)
    numbers.check(instance.name, made)
    _, first = run(numbers.random, 1)
    repeats = max(1, min(MOST_REPEATS, int(ENOUGH_S / max(first, 1e-7))))
    return min(run(numbers.random, repeats)[1] for _ in range(MEASUREMENTS))
