"""A model for inputs of one shape, and the choice between several variants by the inputs of an invocation."""

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
        inputs: those that callers give, in the model's order. An input that no kernel reads is checked and dropped.

    Raises:
        InvalidModel: the task and the inputs do not fit each other.
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
        """The buffers that the kernels read in addition to the inputs."""
        return tuple(buffer for buffer in self.task.inputs if buffer not in self.inputs)

    def _invalid(self, what: str, buffer: Buffer) -> InvalidModel:
        label = self.task.label
        return InvalidModel(f"variant {label!r} {what}", model=label, buffer=buffer.name)


def described(buffer: Buffer) -> str:
    """Return a buffer's dtype and shape, as `float32[8, 4]`."""
    return _shown(buffer.dtype, buffer.shape)


def _shown(dtype: str | None, shape: Iterable[int] | None) -> str:
    return f"{dtype or '?'}[{'...' if shape is None else ', '.join(map(str, shape))}]"


# --- the inputs of one invocation


def by_position(
    label: str, taken: Mapping[str, Buffer], positional: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Return inputs by name, of which the first are given in order. Missing inputs are not checked.

    Raises:
        InvalidRequest: too many inputs are given, or one is given twice.
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
class _InputFacts:
    """The facts that are known of an input; None for those that are not."""

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
    """Return the index of the variant that takes these inputs. The inputs of each variant are by name.

    Shapes and dtypes decide. For plain bytes, and for an array of another dtype where "uint8" is taken, the number of
    bytes counts; a View or a reference fits every variant.

    Raises:
        MissingInput, UnexpectedInput: the names are not those of the variants' inputs.
        NoVariant: no variant takes the inputs. UndecidedVariant: several do. NotContiguous: an input has no bytes.
    """
    if inputs.keys() != variants[0].keys():
        check_taken(repr(label), label, variants[0].values(), inputs)
    facts = {
        name: _InputFacts() if is_reference(value) else _facts_of(variants[0][name], value)
        for name, value in inputs.items()
    }
    return _fitting(label, variants, facts)


def of_shapes(label: str, variants: Sequence[Mapping[str, Buffer]], shapes: Mapping[str, int | Sequence[int]]) -> int:
    """Return the index of the variant for these shapes of some of the inputs, by name.

    Raises:
        InvalidRequest, UnexpectedInput, NoVariant, UndecidedVariant
    """
    facts: dict[str, _InputFacts] = {}
    for name, shape in shapes.items():
        extents = integers(shape)
        if extents is None:
            raise InvalidRequest(f"{label!r}: a shape is integers, not {shape!r}", task=label, buffer=name)
        facts[name] = _InputFacts(shape=extents)
    rest = dict.fromkeys(variants[0].keys() - facts.keys(), _InputFacts())
    check_taken(repr(label), label, variants[0].values(), facts | rest)
    return _fitting(label, variants, {name: (facts | rest)[name] for name in variants[0]})


def _fitting(label: str, variants: Sequence[Mapping[str, Buffer]], facts: Mapping[str, _InputFacts]) -> int:
    fitting = [n for n, takes in enumerate(variants) if all(facts[name].fits(takes[name]) for name in facts)]
    if len(fitting) == 1:
        return fitting[0]
    given = {name: str(fact) for name, fact in facts.items()}
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


def _facts_of(buffer: Buffer, value: Any) -> _InputFacts:
    if isinstance(value, View):
        return _InputFacts()
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or shape is None:
        data, name, shape = raw_bytes(buffer, value)
        return _InputFacts(name, None if hasattr(value, "__dlpack__") else shape, len(data))
    return _InputFacts(dtype_name(dtype) or _foreign_name(dtype), tuple(shape), getattr(value, "nbytes", None))


def _foreign_name(dtype: Any) -> str:
    """Return the name of another library's dtype; PyTorch's are called torch.float32."""
    text = str(dtype)
    plain = text.rpartition(".")[2]
    return plain if plain in DTYPE_BYTES else text
