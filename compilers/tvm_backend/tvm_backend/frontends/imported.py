"""A model in Relax, and what is known of it before it is."""

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
        outputs: the model's names of what it returns: of a tuple's fields, in their order.
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
        module: one function for each batch size. Parameters are bound as constants, no shape is open.
        functions: the smallest batch size first.
        constants: the model's parameters by their own names, as far as it names them.
        origins: by name of a Relax variable the operator and place in the model that it comes from.
    """

    name: str
    module: tvm.IRModule = field(repr=False)
    functions: tuple[EntryPoint, ...]
    constants: Mapping[str, np.ndarray[Any, Any]] = field(repr=False)
    origins: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that is known as far as the recompile cache needs it: reading it whole, or TVM, may wait.

    Args:
        content: feeds a hash with all that the model consists of.
        imported: the model in Relax.
    """

    content: Callable[[Digest], None]
    imported: Callable[[], Imported]
