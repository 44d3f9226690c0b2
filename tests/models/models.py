"""Small models made by hand, of kernels that do not run here, and random ones by Hypothesis."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import kaas
from kaas.ktask.dtypes import DTYPE_BYTES, numpy_dtype
from kaas.models.constants_file import RESERVED
from tests.ktask.strategies import LIBRARIES, names

LIBRARY = LIBRARIES[0]


def variant(batch: int, **options: Any) -> kaas.Variant:
    """Return a variant: y from x of (batch, 4), ids that no kernel reads, and the constant w."""
    x, ids = kaas.Buffer("x", (batch, 4), "float32"), kaas.Buffer("ids", batch, "int64")
    w, y = kaas.Buffer("w", (4, 2), "float32"), kaas.Buffer("y", (batch, 2), "float32")
    kernel = kaas.Kernel(options.get("library", LIBRARY), "k", 1, 32, [kaas.In(x), kaas.In(w), kaas.Out(y)])
    return kaas.Variant(kaas.KTask([kernel], [y], name=f"small-{batch}"), (x, ids))


def model(*batches: int, name: str = "small") -> kaas.CompiledModel:
    weights = np.arange(8, dtype=np.float32).reshape(4, 2)
    return kaas.CompiledModel(name, [variant(batch) for batch in batches or (1, 8)], {"w": weights}, {"by": "hand"})


def _bits(dtype: str) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """Draw arrays of any bits that the dtype allows."""
    shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    if dtype == "bool":
        return arrays.arrays(np.bool_, shapes)
    size = DTYPE_BYTES[dtype]
    raw = shapes.flatmap(lambda shape: arrays.arrays(np.uint8, (*shape, size)))
    return raw.map(lambda data: data.view(numpy_dtype(dtype)).reshape(data.shape[:-1]))


tensor_names = names.filter(lambda name: name != RESERVED)
constants = st.sampled_from(sorted(DTYPE_BYTES)).flatmap(_bits)


@st.composite
def models(draw: st.DrawFn) -> kaas.CompiledModel:
    """Draw one or more variants, whose kernel reads some of the inputs and of the constants."""
    inputs = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    bound = draw(st.dictionaries(tensor_names.filter(lambda name: name not in [*inputs, "out"]), constants, max_size=4))
    read = draw(st.lists(st.sampled_from(inputs), unique=True))
    dtype = draw(st.sampled_from(sorted(DTYPE_BYTES)))
    library = draw(st.sampled_from(LIBRARIES)) | draw(st.sampled_from(LIBRARIES))
    variants = []
    for batch in draw(st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True)):
        taken = tuple(kaas.Buffer(name, (batch, 2), dtype) for name in inputs if name != "out")
        arguments = [kaas.In(buffer) for buffer in taken if buffer.name in read]
        arguments += [
            kaas.In(kaas.Buffer(name, array.shape, array.dtype)) for name, array in bound.items() if array.size
        ]
        out = kaas.Buffer("out", (batch,), "float32")
        task = kaas.KTask([kaas.Kernel(library, "k", batch, 32, [*arguments, kaas.Out(out)])], [out])
        variants.append(kaas.Variant(task, taken))
    kept = {name: array for name, array in bound.items() if array.size}
    return kaas.CompiledModel(draw(names), variants, kept, draw(st.dictionaries(names, names, max_size=2)))
