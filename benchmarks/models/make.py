"""`python -m benchmarks.models.make [NAME ...]`: makes the models' graphs and results by PyTorch and onnxscript."""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

import numpy as np
import onnx
import torch
from onnxscript.ir.passes.common import LiftConstantsToInitializersPass, RemoveUnusedNodesPass
from onnxscript.optimizer import fold_constants
from onnxscript.rewriter import rewrite
from onnxscript.rewriter.rules.common import remove_optional_bias_from_conv_rule

from benchmarks.models.catalogue import MODELS, Model
from benchmarks.models.graphs import with_weights, without_weights

OPSET = 18
SMALL = 64
"""The most bytes of constants that are folded: shapes and the like, no weights."""


def exported(model: Model, network: torch.nn.Module) -> onnx.ModelProto:
    """Return the graph for a batch of any size if the model is compiled for several sizes, else for its only one."""
    inputs = tuple(torch.from_numpy(value) for value in model.inputs(model.batch_sizes[-1]).values())
    dynamic = {0: torch.export.Dim("batch", min=1, max=1024)} if len(model.batch_sizes) > 1 else None
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):  # PyTorch's warnings about itself
            warnings.simplefilter("ignore", category)
        program: Any = torch.onnx.export(
            network, inputs, dynamo=True, opset_version=OPSET, verbose=False, optimize=False,
            input_names=list(model.inputs()), output_names=list(model.outputs),
            dynamic_shapes=tuple(dynamic for _ in inputs) if dynamic else None,
        )  # fmt: skip
    # the exporter's own last steps, except those that make new weights of several
    fold_constants(
        program.model, onnx_shape_inference=True, input_size_limit=SMALL,
        should_fold=lambda node: False if node.op_type == "Transpose" else None,
    )  # fmt: skip
    rewrite(program.model, pattern_rewrite_rules=[remove_optional_bias_from_conv_rule])  # it would be all zeros
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(program.model)
    RemoveUnusedNodesPass()(program.model)
    made: onnx.ModelProto = program.model_proto
    return made


def answered(model: Model, network: torch.nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    with torch.inference_mode():
        given = network(*(torch.from_numpy(value) for value in model.inputs(model.batch_sizes[-1]).values()))
    tensors = given if isinstance(given, tuple) else (given,)
    return {name: tensor.numpy() for name, tensor in zip(model.outputs, tensors, strict=True)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="make only these models", metavar="NAME")
    for name in parser.parse_args().names or MODELS:
        model = MODELS[name]
        network = model.network()
        whole = exported(model, network)
        model.graph_path.write_bytes(without_weights(whole, set(network.state_dict())).SerializeToString())
        again = {tensor.name: tensor.raw_data for tensor in with_weights(model.graph_path).graph.initializer}
        assert again == {tensor.name: tensor.raw_data for tensor in whole.graph.initializer}, "weights must come back"
        np.savez(model.answers_path, allow_pickle=False, **answered(model, network))
        print(name, model.graph_path.stat().st_size, "bytes of graph,", model.answers_path.stat().st_size, "of answers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
