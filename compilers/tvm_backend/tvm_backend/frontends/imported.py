"""A model in Relax, and a model that is ready to be imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tvm_backend.frontends.content import Digest

if TYPE_CHECKING:
    import numpy as np
    import tvm


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One Relax function of the module: the model for inputs of one shape.

    Args:
        function: its global name.
        batch_size: the model's first dimension there.
        inputs: the model's names of the function's parameters, in their order.
        outputs: the model's names of the results: of a tuple's fields, in their order.
    """

    function: str
    batch_size: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Imported:
    """A model in Relax.

    Args:
        name: of the model.
        module: one function for each batch size. Parameters are bound as constants, and all shapes are known.
        functions: the smallest batch size first.
        constants: the model's parameters by their own names, as far as it names them.
        origins: the operator and the place in the model that each Relax variable comes from, by the variable's name.
    """

    name: str
    module: tvm.IRModule = field(repr=False)
    functions: tuple[EntryPoint, ...]
    constants: Mapping[str, np.ndarray[Any, Any]] = field(repr=False)
    origins: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model before its import, which needs TVM: the store's key needs the content only.

    Args:
        content: adds the model's content to a hash.
        imported: returns the model in Relax.
    """

    content: Callable[[Digest], None]
    imported: Callable[[], Imported]
