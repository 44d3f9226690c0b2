"""A compiled model: its variants, the constants that they share, and the ways to save, load, register and run it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kaas.config import Device
from kaas.errors import InvalidModel, InvalidRequest
from kaas.executor.device.host_arrays import on_host
from kaas.ktask.arguments import check_name
from kaas.ktask.dtypes import dtype_name
from kaas.ktask.library import Library
from kaas.ktask.request import input_bytes, outputs_type
from kaas.ktask.variant import Variant, by_position, choose, described
from kaas.models import constants_file, model_file

if TYPE_CHECKING:
    from kaas.api.function import Function
    from kaas.executor.executor import RunResult
    from kaas.executor.inputs import InputSource
    from kaas.models.constants_file import Array

_numbers = count()


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class CompiledModel:
    """A model as kTasks, one for each shape of inputs that it was compiled for.

    Args:
        name: for people; content identifies its functions.
        variants: in any order; all with inputs and outputs of the same names, and with kernels of one library.
        constants: by buffer name, NumPy arrays (ml_dtypes' for bfloat16 and float8), which must not be changed any
            more. Each is read by some variant.
        about: facts for people: compiler, target, ...

    Fields:
        variants: those for the smallest inputs first. constants: read-only.

    Raises:
        InvalidModel: variants, inputs and constants do not fit each other.
    """

    name: str
    variants: tuple[Variant, ...]
    constants: Mapping[str, Array]
    about: Mapping[str, str]
    library: Library
    _number: int
    _sources: dict[Variant, Mapping[str, InputSource]]

    def __init__(
        self,
        name: str,
        variants: Iterable[Variant],
        constants: Mapping[str, Array],
        about: Mapping[str, str] | None = None,
    ) -> None:
        check_name("a model's name", name)
        variants = tuple(variants)
        if not variants or not all(isinstance(variant, Variant) for variant in variants):
            raise InvalidModel(f"model {name!r}: variants is one or more kaas.Variant", model=name)
        about = dict(about or {})
        if not all(isinstance(text, str) for entry in about.items() for text in entry):
            raise InvalidModel(f"model {name!r}: about maps strings to strings, not {about!r}", model=name)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "variants", tuple(sorted(variants, key=_input_bytes)))
        object.__setattr__(self, "constants", MappingProxyType(_constants(name, variants, constants)))
        object.__setattr__(self, "about", MappingProxyType(about))
        object.__setattr__(self, "library", _library(name, variants))
        _check_alike(name, variants)
        object.__setattr__(self, "_number", next(_numbers))  # unique in the process, unlike an address
        object.__setattr__(self, "_sources", {})

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in the model's order."""
        return tuple(buffer.name for buffer in self.variants[0].inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in the model's order."""
        return tuple(buffer.name for buffer in self.variants[0].task.outputs)

    @property
    def constant_bytes(self) -> int:
        """Bytes of all constants."""
        return sum(array.nbytes for array in self.constants.values())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a .kaas file, which `kaas.load` reads.

        Raises:
            InvalidRequest: the file cannot be written.
        """
        parts = model_file.ModelParts(self.name, self.variants, self.constants, self.about, self.library)
        try:
            model_file.write(path, parts)
        except OSError as error:
            raise InvalidRequest(f"cannot write model {self.name!r} to {os.fspath(path)}: {error}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CompiledModel:
        """Return a model from a .kaas file, which is read whole: the file may be changed or removed later.

        Raises:
            InvalidRequest: there is no such file. CorruptModel: the file holds no model, or a damaged one.
        """
        try:
            parts = model_file.read(path)
        except OSError as error:
            raise InvalidRequest(f"cannot read {os.fspath(path)}: {error}") from error
        with model_file.raising_corrupt_model(path):
            return cls(parts.name, parts.variants, parts.constants, parts.about)

    def choose(self, inputs: Mapping[str, Any]) -> Variant:
        """Return the variant for inputs by name.

        Raises:
            NoVariant, UndecidedVariant
        """
        taken = [{buffer.name: buffer for buffer in variant.inputs} for variant in self.variants]
        return self.variants[choose(self.name, taken, inputs)]

    def register(self) -> Function:
        """Register a function: the constants go into Ray's store once, and inputs choose the variant.

        Raises:
            NotInitialized, PoolStopped
        """
        from kaas.api.registration import register_variants

        return register_variants(self.name, self.variants, self.constants)

    def run_local(self, *arrays: Any, device: Device | int | None = None, **named: Any) -> Any:
        """Run the model in this process, without Ray. The constants stay on the device for the next run.

        Args:
            *arrays: inputs in the model's order. An input called "device" can be given only in this way.
            device: as in `kaas.run_local`.
            **named: the other inputs, by name.

        Returns:
            The output's array; of several outputs a named tuple of them.

        Raises:
            NoVariant, UndecidedVariant; all errors of `kaas.run_local`.
        """
        taken = {buffer.name: buffer for buffer in self.variants[0].inputs}
        outputs = self.run(by_position(self.name, taken, arrays, named), device=device).outputs
        return outputs_type(tuple(outputs))(*outputs.values()) if len(outputs) > 1 else next(iter(outputs.values()))

    def run(self, inputs: Mapping[str, Any], *, device: Device | int | None = None, profile: bool = False) -> RunResult:
        """Run the model as `run_local` does, for inputs by name.

        The result has the times of the stages too and, with profile, those of the kernels.
        """
        from kaas.executor import local
        from kaas.executor.executor import RunRequest

        variant = self.choose(inputs)
        sources = dict(self._constant_sources(variant))
        read = {buffer.name for buffer in variant.task.inputs}
        for buffer in variant.inputs:
            if buffer.name in read:
                sources[buffer.name] = local.source_of(inputs[buffer.name])
            else:
                input_bytes(buffer, on_host(buffer.name, inputs[buffer.name]))
        return local.interruptible(local.executor_for(device), RunRequest(variant.task, sources, {}, profile=profile))

    def _constant_sources(self, variant: Variant) -> Mapping[str, InputSource]:
        """Return the constants as inputs, under keys by which devices find them at the next run."""
        from kaas.executor.inputs import InputSource

        sources = self._sources.get(variant)
        if sources is None:
            sources = self._sources[variant] = {
                buffer.name: InputSource(
                    self.constants[buffer.name],
                    f"{self._number} {buffer.name}".encode(),
                    constants=b"%d" % self._number,
                )
                for buffer in variant.constants
            }
        return sources

    def __repr__(self) -> str:
        shapes = " or ".join(
            ", ".join(f"{buffer.name}: {described(buffer)}" for buffer in variant.inputs) for variant in self.variants
        )
        return f"<kaas.CompiledModel {self.name!r} for {shapes}; {self.constant_bytes} bytes of constants>"

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledModel, (self.name, self.variants, dict(self.constants), dict(self.about))


load = CompiledModel.load


def _input_bytes(variant: Variant) -> int:
    return sum(buffer.nbytes for buffer in variant.inputs)


def _library(name: str, variants: tuple[Variant, ...]) -> Library:
    found = list(dict.fromkeys(library for variant in variants for library in variant.task.libraries))
    if len(found) > 1:
        raise InvalidModel(f"model {name!r}: its kernels are of {len(found)} libraries, not of one", model=name)
    return found[0]


def _constants(name: str, variants: tuple[Variant, ...], constants: Mapping[str, Array]) -> dict[str, Array]:
    """Return the constants, read-only and without gaps, in the order of their names."""
    import numpy as np

    kept: dict[str, Array] = {}
    for constant, value in sorted(constants.items()):
        if constant == constants_file.RESERVED:
            raise InvalidModel(f"model {name!r}: no file can hold a constant {constant!r}", model=name, buffer=constant)
        if not isinstance(value, np.ndarray) or dtype_name(value.dtype) is None:
            raise InvalidModel(f"model {name!r}: constant {constant!r} is no array of numbers, but {type(value)}",
                               model=name, buffer=constant)  # fmt: skip
        kept[constant] = array = np.ascontiguousarray(value).reshape(value.shape).view()
        array.flags.writeable = False
    read: set[str] = set()
    for variant in variants:
        for buffer in variant.constants:
            if buffer.name not in kept:
                raise InvalidModel(
                    f"model {name!r}: variant {variant.task.label!r} reads {buffer.name!r} ({described(buffer)}), "
                    "which is neither an input nor a constant",
                    model=name,
                    buffer=buffer.name,
                )
            try:
                input_bytes(buffer, kept[buffer.name])
            except InvalidRequest as error:
                raise InvalidModel(
                    f"model {name!r}: constant: {error.message}", model=name, buffer=buffer.name
                ) from error
            read.add(buffer.name)
    for constant in kept.keys() - read:
        raise InvalidModel(f"model {name!r}: no variant reads constant {constant!r}", model=name, buffer=constant)
    return kept


def _check_alike(name: str, variants: tuple[Variant, ...]) -> None:
    """Check that the variants form one model.

    Raises:
        InvalidModel: their inputs or outputs differ in names, two are for the same shapes, or one takes scalars.
    """
    seen: dict[tuple[tuple[Any, ...], ...], Variant] = {}
    for variant in variants:
        for what in ("inputs", "outputs"):
            named, first = (_names(one, what) for one in (variant, variants[0]))
            if named != first:
                raise InvalidModel(
                    f"model {name!r}: {what} of its variants differ: {', '.join(first)} and {', '.join(named)}",
                    model=name,
                )
        if variant.task.scalars:
            scalars = ", ".join(variant.task.scalars)
            raise InvalidModel(
                f"model {name!r}: its kernels take scalars ({scalars}), which a model does not have", model=name
            )
        shapes = tuple((buffer.dtype, buffer.shape) for buffer in variant.inputs)
        if seen.setdefault(shapes, variant) is not variant:
            labels = f"{seen[shapes].task.label!r} and {variant.task.label!r}"
            raise InvalidModel(f"model {name!r}: variants {labels} are for the same inputs", model=name)


def _names(variant: Variant, what: str) -> tuple[str, ...]:
    return tuple(buffer.name for buffer in (variant.inputs if what == "inputs" else variant.task.outputs))
