"""What a frontend makes of a model: a Relax module without unknown shapes, and the names that the model gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import tvm


@dataclass(frozen=True, slots=True)
class Entry:
    """One of the module's functions: the model for inputs of one batch size.

    Fields:
        function: its global name in the module.
        inputs: names of its parameters, in order.
        outputs: names of its results, in order, nested tuples laid flat.
    """

    function: str
    batch_size: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Imported:
    """A model for the compiler.

    Fields:
        module: one Relax function per batch size, its parameters bound as constants, every shape known.
        functions: the smallest batch size first.
        constants: the model's parameters by name, where they are known; they lend their names to the kTasks' buffers.
    """

    name: str
    module: tvm.IRModule
    functions: tuple[Entry, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
