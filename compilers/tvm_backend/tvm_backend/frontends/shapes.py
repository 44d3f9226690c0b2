"""Which sizes the open dimensions of a model's inputs get: from the batch sizes asked for and from example inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_backend.errors import InvalidModel

Dimension = int | str
"""A size, or the name of one that the model leaves open."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input as the model declares it."""

    name: str
    shape: tuple[Dimension, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name!r}, {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Binding:
    """Sizes of all open dimensions, for one batch size."""

    batch_size: int
    sizes: Mapping[str, int]

    def shape(self, given: Input) -> tuple[int, ...]:
        return tuple(self.sizes[size] if isinstance(size, str) else size for size in given.shape)


def bindings(
    model: str, inputs: Sequence[Input], examples: Mapping[str, Any], batch_sizes: Sequence[int] | None
) -> tuple[Binding, ...]:
    """One for each batch size, the smallest first. Without any asked for: the one of the model or of the examples, and
    1 where both leave it open.

    Raises:
        InvalidModel: examples of other shapes or dtypes, a batch size that the model does not have, open dimensions
            that no example tells.
    """
    known = _known(model, inputs, examples)
    batch = batch_dimension(inputs)
    if batch is None:
        sizes = batch_sizes or (own_batch_size(inputs),)
        _check_fixed(model, inputs, sizes)
    else:
        sizes = batch_sizes or (known.get(batch, 1),)
    bound = {name for given in inputs for name in given.shape if isinstance(name, str)}
    unknown = sorted(bound - known.keys() - {batch})
    if unknown:
        where = "; ".join(str(given) for given in inputs if set(given.shape) & set(unknown))
        shapes = " ".join(_shape_option(given) for given in inputs if set(given.shape) & set(unknown))
        message = (
            f"{model} leaves {', '.join(unknown)} open ({where}): say how large, by example_inputs or, at the command "
            f"line, by {shapes}"
        )
        raise InvalidModel(message, model=model, names=tuple(unknown))
    return tuple(Binding(size, known if batch is None else {**known, batch: size}) for size in sorted(set(sizes)))


def _shape_option(given: Input) -> str:
    """What `kaas compile` takes for an input, with the names of open sizes where numbers are to stand."""
    sizes = (f"<{size}>" if isinstance(size, str) else str(size) for size in given.shape)
    return f"--shape {given.name}={'x'.join(sizes)}"


def batch_dimension(inputs: Sequence[Input]) -> str | None:
    """The open dimension whose name says that it is the batch, or the one that stands first in the first input that
    leaves its first dimension open."""
    named = [size for given in inputs for size in given.shape if isinstance(size, str) and "batch" in size.lower()]
    first = [given.shape[0] for given in inputs if given.shape and isinstance(given.shape[0], str)]
    return next(iter(named + first), None)


def own_batch_size(inputs: Sequence[Input]) -> int:
    """Of a model whose shapes are fixed: the first dimension of its first input."""
    return next((int(given.shape[0]) for given in inputs if given.shape), 1)


def by_name(model: str, names: Sequence[str], examples: Any) -> dict[str, Any]:
    """Examples by the inputs' names: from a mapping, from a sequence in their order, or of a single one.

    Raises:
        InvalidModel: too many, of unknown names, or of what has neither shape nor dtype.
    """
    if examples is None:
        return {}
    if isinstance(examples, Mapping):
        unknown = tuple(str(name) for name in examples if name not in names)
        if unknown:
            message = f"{model} has no input {', '.join(unknown)}; its inputs are {', '.join(names) or 'none'}"
            raise InvalidModel(message, model=model, names=unknown)
        found = dict(examples)
    else:
        listed = list(examples) if isinstance(examples, list | tuple) else [examples]
        if len(listed) > len(names):
            message = f"{model} has {len(names)} inputs ({', '.join(names)}); {len(listed)} examples were given"
            raise InvalidModel(message, model=model)
        found = dict(zip(names, listed, strict=False))
    for name, example in found.items():
        check_example(model, name, example)
    return found


def check_example(model: str, name: str, example: Any) -> None:
    if not (hasattr(example, "shape") and hasattr(example, "dtype")):
        message = f"{model}: the example of input {name!r} is an array, a tensor or a kaas.Buffer, not {type(example)}"
        raise InvalidModel(message, model=model, input=name)


def dtype_of(example: Any) -> str:
    """`float32` of NumPy's, torch's and TVM's dtypes; `None` of an example that says its shape only."""
    return str(example.dtype).removeprefix("torch.")


def open_batch(examples: Mapping[str, Any], batched: bool) -> tuple[Input, ...]:
    """Inputs like their examples, for a model that declares none. If `batched`, the first dimension of the first
    example is the batch, and so is that of every other example that has as many rows."""
    shapes = {name: tuple(example.shape) for name, example in examples.items()}
    rows = next((shape[0] for shape in shapes.values() if shape), None) if batched else None
    return tuple(
        Input(name, ("batch", *shape[1:]) if rows is not None and shape[:1] == (rows,) else shape, dtype_of(example))
        for (name, example), shape in zip(examples.items(), shapes.values(), strict=True)
    )


def _known(model: str, inputs: Sequence[Input], examples: Mapping[str, Any]) -> dict[str, int]:
    known: dict[str, int] = {}
    for given in inputs:
        if given.name not in examples:
            continue
        example = examples[given.name]
        shape = tuple(int(size) for size in example.shape)
        fits = len(shape) == len(given.shape) and dtype_of(example) in (given.dtype, "None")
        for declared, size in zip(given.shape, shape, strict=False):
            fits &= (known.setdefault(declared, size) if isinstance(declared, str) else declared) == size
        if not fits:
            message = f"{model}: input {given} does not take the example, {dtype_of(example)}{list(shape)}"
            raise InvalidModel(message, model=model, input=given.name)
    return known


def _check_fixed(model: str, inputs: Sequence[Input], sizes: Sequence[int]) -> None:
    own = own_batch_size(inputs)
    wrong = [size for size in sizes if size != own]
    if wrong:
        message = (
            f"{model} takes a batch of {own} only, not of {', '.join(map(str, wrong))}: leave batch_sizes out, or "
            f"export the model with an open first dimension"
        )
        raise InvalidModel(message, model=model)
