"""kTasks from a lowered module: the calls of each Relax function as kernels, its storage plan as buffers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import ir, relax

from kaas.arguments import Access, Argument, Buffer, In, InOut, Literal, Out
from kaas.graph import KTask
from kaas.kernel import Kernel
from kaas.library import Library
from tvm_backend.accesses import Use, uses
from tvm_backend.imported import Entry, Imported
from tvm_backend.launches import Launch, Workspace, launches
from tvm_backend.lowering import Lowered
from tvm_backend.problems import Problem, check


@dataclass(frozen=True, slots=True)
class Variant:
    """A model for inputs of one shape."""

    task: KTask
    inputs: tuple[Buffer, ...]
