"""Sizes for the open dimensions of a model's inputs, from the batch sizes and the example inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_backend.errors import InvalidModel

Dimension = int | str
"""A size, or the name of a size that the model leaves open."""


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
        """Return the shape of an input with these sizes."""
        return tuple(self.sizes[size] if isinstance(size, str) else size for size in given.shape)


def bindings(
    model: str, inputs: Sequence[Input], examples: Mapping[str, Any], batch_sizes: Sequence[int] | None
) -> tuple[Binding, ...]:
    """Return a binding for each batch size, the smallest first.

    Without `batch_sizes` the batch size is that of the model or of the examples, or 1 if both leave it open.

    Raises:
        InvalidModel: an example has another shape or dtype, the model does not have a batch size, or no example gives
            the size of an open dimension.
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
    """Return the option of `kaas compile` for an input's shape, with names in the place of open sizes."""
    sizes = (f"<{size}>" if isinstance(size, str) else str(size) for size in given.shape)
    return f"--shape {given.name}={'x'.join(sizes)}"


def batch_dimension(inputs: Sequence[Input]) -> str | None:
    """Return the name of the batch dimension, or None if no dimension can be the batch.

    The batch is the open dimension with "batch" in its name, else the first dimension of the first input that leaves
    its first dimension open.
    """
    named = [size for given in inputs for size in given.shape if isinstance(size, str) and "batch" in size.lower()]
    first = [given.shape[0] for given in inputs if given.shape and isinstance(given.shape[0], str)]
    return next(iter(named + first), None)


def own_batch_size(inputs: Sequence[Input]) -> int:
    """Return the batch size of a model with fixed shapes: the first dimension of its first input with dimensions."""
    return next((int(given.shape[0]) for given in inputs if given.shape), 1)


def by_name(model: str, names: Sequence[str], examples: Any) -> dict[str, Any]:
    """Return the examples by the inputs' names: from a mapping, a sequence in the inputs' order, or one example.

    Raises:
        InvalidModel: too many examples, an unknown name, or an example without a shape or dtype.
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
    """Check that an example has a shape and a dtype.

    Raises:
        InvalidModel: it has not.
    """
    if not (hasattr(example, "shape") and hasattr(example, "dtype")):
        message = f"{model}: the example of input {name!r} is an array, a tensor or a kaas.Buffer, not {type(example)}"
        raise InvalidModel(message, model=model, input=name)


def dtype_of(example: Any) -> str:
    """Return the name of an example's dtype, such as `float32`; "None" for an example with a shape only."""
    return str(example.dtype).removeprefix("torch.")


def open_batch(examples: Mapping[str, Any], batched: bool) -> tuple[Input, ...]:
    """Return inputs like their examples, for a model that declares none.

    If `batched`, the first dimension of the first example is the batch, and so is the first dimension of every other
    example with as many rows.
    """
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
