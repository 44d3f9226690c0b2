"""A model for inputs of one shape, and which of several variants an invocation's inputs are for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kaas.errors import InvalidModel, InvalidRequest, NoVariant, UndecidedVariant
from kaas.ktask.arguments import Buffer, integers, items
from kaas.ktask.dtypes import DTYPE_BYTES, dtype_name
from kaas.ktask.graph import KTask
from kaas.ktask.request import View, check_taken, raw_bytes


@dataclass(frozen=True, slots=True)
class Variant:
    """A model for inputs of one shape.

    Args:
        task: its outputs are the model's, in the model's order; its inputs are some of these here, and constants.
        inputs: what callers give, in the model's order. One that no kernel reads is taken, checked and dropped.

    Raises:
        InvalidModel
    """

    task: KTask
    inputs: tuple[Buffer, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.task, KTask):
            raise InvalidModel(f"a variant's task is a kaas.KTask, not {self.task!r}")
        inputs = items("inputs", self.inputs)
        if not all(isinstance(buffer, Buffer) for buffer in inputs):
            raise InvalidModel(f"a variant's inputs are kaas.Buffers, not {inputs!r}", model=self.task.label)
        object.__setattr__(self, "inputs", inputs)
        known = {buffer.name: buffer for buffer in self.task.buffers}
        read = set(self.task.inputs)
        names = [buffer.name for buffer in inputs]
        for buffer in inputs:
            if names.count(buffer.name) > 1:
                raise self._invalid(f"takes two inputs named {buffer.name!r}", buffer)
            if buffer.init is not None:
                raise self._invalid(f"takes {buffer.name!r} as an input, which starts as zeros", buffer)
            if known.get(buffer.name, buffer) != buffer:
                raise self._invalid(f"takes {described(buffer)} as {buffer.name!r}, which is "
                                    f"{described(known[buffer.name])} to its kernels", buffer)  # fmt: skip
            if buffer.name in known and buffer not in read:
                raise self._invalid(f"takes {buffer.name!r} as an input, which its kernels write first", buffer)

    @property
    def constants(self) -> tuple[Buffer, ...]:
        """What its kernels read beside the inputs."""
        return tuple(buffer for buffer in self.task.inputs if buffer not in self.inputs)

    def _invalid(self, what: str, buffer: Buffer) -> InvalidModel:
        label = self.task.label
        return InvalidModel(f"variant {label!r} {what}", model=label, buffer=buffer.name)


def described(buffer: Buffer) -> str:
    """As `float32[8, 4]`."""
    return _shown(buffer.dtype, buffer.shape)


def _shown(dtype: str | None, shape: Iterable[int] | None) -> str:
    return f"{dtype or '?'}[{'...' if shape is None else ', '.join(map(str, shape))}]"


# --- the inputs of one invocation


def by_position(
    label: str, taken: Mapping[str, Buffer], positional: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Inputs by name, of which the first are given in order. Whether all are there is not looked at.

    Raises:
        InvalidRequest
    """
    if len(positional) > len(taken):
        inputs = ", ".join(taken) or "none"
        raise InvalidRequest(f"{label!r} takes {len(taken)} inputs ({inputs}), not {len(positional)}", task=label)
    given = dict(zip(taken, positional, strict=False))
    for name in named:
        if name in given:
            raise InvalidRequest(f"{label!r}: input {name!r} is given by position and by name", task=label, buffer=name)
    return given | dict(named)


@dataclass(frozen=True, slots=True)
class _Told:
    """What can be seen of an input; None: it cannot."""

    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    nbytes: int | None = None

    def fits(self, buffer: Buffer) -> bool:
        if self.dtype != buffer.dtype and buffer.dtype != "uint8" and self.dtype is not None:
            return False
        if self.shape is not None and self.dtype in (buffer.dtype, None):
            return self.shape == buffer.shape
        return self.nbytes in (buffer.nbytes, None)

    def __str__(self) -> str:
        if self.dtype is None and self.shape is None:
            return "unknown" if self.nbytes is None else f"{self.nbytes} bytes"
        return _shown(self.dtype, self.shape)


def choose(
    label: str,
    variants: Sequence[Mapping[str, Buffer]],
    inputs: Mapping[str, Any],
    is_reference: Callable[[Any], bool] = lambda _: False,
) -> int:
    """Which of the variants takes these inputs, as an index. The inputs of each variant are by name.

    Shapes and dtypes decide. Of plain bytes, and of an array of another dtype where "uint8" is taken, the number of
    bytes counts; of a View and of a reference nothing is known.

    Raises:
        MissingInput, UnexpectedInput: the given ones are not exactly those.
        NoVariant: none takes them. UndecidedVariant: several would. NotContiguous
    """
    if inputs.keys() != variants[0].keys():
        check_taken(repr(label), label, variants[0].values(), inputs)
    told = {name: _Told() if is_reference(value) else _told(variants[0][name], value) for name, value in inputs.items()}
    return _fitting(label, variants, told)


def of_shapes(label: str, variants: Sequence[Mapping[str, Buffer]], shapes: Mapping[str, int | Sequence[int]]) -> int:
    """As `choose`, by shapes of some of the inputs, by name.

    Raises:
        InvalidRequest, UnexpectedInput, NoVariant, UndecidedVariant
    """
    told: dict[str, _Told] = {}
    for name, shape in shapes.items():
        extents = integers(shape)
        if extents is None:
            raise InvalidRequest(f"{label!r}: a shape is integers, not {shape!r}", task=label, buffer=name)
        told[name] = _Told(shape=extents)
    rest = dict.fromkeys(variants[0].keys() - told.keys(), _Told())
    check_taken(repr(label), label, variants[0].values(), told | rest)
    return _fitting(label, variants, {name: (told | rest)[name] for name in variants[0]})


def _fitting(label: str, variants: Sequence[Mapping[str, Buffer]], told: Mapping[str, _Told]) -> int:
    fitting = [n for n, takes in enumerate(variants) if all(told[name].fits(takes[name]) for name in told)]
    if len(fitting) == 1:
        return fitting[0]
    given = {name: str(seen) for name, seen in told.items()}
    listed = fitting or range(len(variants))
    taken = tuple({name: described(buffer) for name, buffer in variants[n].items()} for n in listed)
    shown = " or ".join(map(_listed, taken))
    if fitting:
        raise UndecidedVariant(
            f"{label!r}: inputs ({_listed(given)}) that {len(fitting)} variants could take: {shown}; "
            "f.variant(name=shape) of a function f says which",
            task=label,
            given=given,
            variants=taken,
        )
    raise NoVariant(
        f"{label!r} was not compiled for {_listed(given)}, but for {shown}", task=label, given=given, variants=taken
    )


def _listed(inputs: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {text}" for name, text in inputs.items())


def _told(buffer: Buffer, value: Any) -> _Told:
    if isinstance(value, View):
        return _Told()
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or shape is None:
        data, name, shape = raw_bytes(buffer, value)
        return _Told(name, None if hasattr(value, "__dlpack__") else shape, len(data))
    return _Told(dtype_name(dtype) or _foreign_name(dtype), tuple(shape), getattr(value, "nbytes", None))


def _foreign_name(dtype: Any) -> str:
    """Of another library's dtype; PyTorch's are called torch.float32."""
    text = str(dtype)
    plain = text.rpartition(".")[2]
    return plain if plain in DTYPE_BYTES else text
