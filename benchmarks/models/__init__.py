"""Seven models, and one of them cut short, with weights and inputs from seeds, and PyTorch's results.

`MODELS` has them by name. Each is an architecture (`architectures/`, for PyTorch), and the same as an ONNX graph
without its weights (`graphs/`) with PyTorch's results (`answers/`), for machines without PyTorch. Nothing is
downloaded.
"""

from __future__ import annotations

from benchmarks.models.catalogue import MODELS, Model, relative_error, same_top1

__all__ = ["MODELS", "Model", "relative_error", "same_top1"]
