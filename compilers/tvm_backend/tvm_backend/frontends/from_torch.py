"""PyTorch models: exported programs, and modules, which are exported here once for each batch size."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from tvm_backend.errors import CompileError, InvalidModel, Place, unsupported
from tvm_backend.frontends.content import Digest, feed, feed_all
from tvm_backend.frontends.imported import Imported, Prepared
from tvm_backend.frontends.parts import Part, merged, output_names
from tvm_backend.frontends.shapes import Input, bindings, by_name, open_batch
from tvm_backend.frontends.specialised import closed
from tvm_backend.frontends.torch_importer import TorchImporter, decompositions, difference

_LINE = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')


Programs = list[tuple[int, ExportedProgram]]
"""Programs by batch size, of fixed shapes."""


def prepared(model: Any, examples: Any, batch_sizes: Sequence[int] | None, name: str) -> Prepared:
    """Prepare a module, exported once for each batch size, or an exported program, whose open sizes are bound in Relax.

    Raises:
        InvalidModel: an example is missing or wrong, or the program changes its buffers or inputs, or its inputs or
            results are not all tensors.
        UnsupportedOperators: operators that TVM cannot convert, or that draw random numbers.
        CompileError: torch cannot export or decompose the program.
    """
    if isinstance(model, torch.nn.Module):
        programs = exported(model, examples, batch_sizes, name)
        return Prepared(lambda digest: _feed(digest, programs), lambda: _imported(programs, None, None, name))
    fixed = [(0, model)]
    return Prepared(lambda digest: _feed(digest, fixed), lambda: _imported(fixed, examples, batch_sizes, name))


def exported(model: torch.nn.Module, examples: Any, batch_sizes: Sequence[int] | None, name: str) -> Programs:
    """Export a module for each batch size.

    Raises:
        InvalidModel: an example is missing or wrong.
        CompileError: torch cannot export the module.
    """
    arguments = list(inspect.signature(model.forward).parameters)
    given = by_name(name, arguments, examples)
    if not given:
        message = f"{name} says nothing of its inputs' shapes: example_inputs needs {', '.join(arguments)}"
        raise InvalidModel(message, model=name, names=tuple(arguments))
    declared = open_batch(given, batch_sizes is not None)
    programs = []
    for binding in bindings(name, declared, {}, batch_sizes):
        tensors = {each.name: _example(given[each.name], binding.shape(each)) for each in declared}
        programs.append((binding.batch_size, _exported(model, tensors, name)))
    return programs


def _imported(programs: Programs, examples: Any, batch_sizes: Sequence[int] | None, name: str) -> Imported:
    parts, constants = [], dict[str, np.ndarray[Any, Any]]()
    for _, whole in programs:
        program = _decomposed(whole, name)
        inputs = declared_inputs(program, name)
        names = tuple(each.name for each in inputs)
        found = bindings(name, inputs, by_name(name, names, examples), batch_sizes)
        module, origins = converted(program, name)
        outputs = output_names(module["main"].ret_ty, _output_names(program))
        parts += [
            Part(binding.batch_size, closed(module, "main", binding.sizes), "main", names, outputs, origins)
            for binding in found
        ]
        constants |= parameters(program)
    merged_module, entries = merged(name, parts)
    return Imported(name, merged_module, entries, constants, parts[0].origins)


def _feed(digest: Digest, programs: Programs) -> None:
    for size, program in programs:
        signature = program.graph_signature
        feed(digest, f"{size} {signature.input_specs} {signature.output_specs} {program.call_spec.out_spec}")
        for module in program.graph_module.modules():
            if isinstance(module, fx.GraphModule):
                values = [(node.name, str(node.meta.get("val"))) for node in module.graph.nodes]
                feed(digest, f"{module.graph} {values}")
        tensors = sorted(_tensors(program).items())
        feed(digest, str([(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors]))
        feed_all(digest, (_bytes(tensor) for _, tensor in tensors))


def _bytes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return array


def _tensors(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return parameters, buffers and constants by their names in the module."""
    named = {**program.constants, **dict(program.named_buffers()), **dict(program.named_parameters())}
    return {each: value for each, value in named.items() if isinstance(value, torch.Tensor)}


def read(path: Path, name: str) -> ExportedProgram:
    """Return the program of a file.

    Raises:
        InvalidModel: no such file, or torch.export.save did not write it.
    """
    try:
        return torch.export.load(path)
    except Exception as error:  # zip's errors, torch's, OSError
        what = "cannot be read" if isinstance(error, OSError) else "is not a file of torch.export.save"
        raise InvalidModel(f"{path} {what}: {error}", model=name, path=str(path)) from error


def declared_inputs(program: ExportedProgram, name: str) -> tuple[Input, ...]:
    """Return the program's inputs, with their open dimensions by name.

    Raises:
        InvalidModel: an input is no tensor.
    """
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    inputs = []
    for given in program.graph_signature.input_specs:
        if given.kind is not InputKind.USER_INPUT:
            continue
        if not isinstance(given.arg, TensorArgument):
            message = f"{name}: input {given.arg.name!r} is no tensor; inputs are tensors"
            raise InvalidModel(message, model=name, input=given.arg.name)
        value = nodes[given.arg.name].meta["val"]
        shape = tuple(int(size) if isinstance(size, int) else str(size) for size in value.shape)
        inputs.append(Input(given.arg.name, shape, str(value.dtype).removeprefix("torch.")))
    return tuple(inputs)


def parameters(program: ExportedProgram) -> dict[str, np.ndarray[Any, Any]]:
    """Return the values of parameters, buffers and constants by their names in the module."""
    convert = ExportedProgramImporter._convert_pytorch_tensor_to_tvm
    return {each: convert(value).numpy() for each, value in _tensors(program).items()}


def converted(program: ExportedProgram, name: str) -> tuple[tvm.IRModule, dict[str, tuple[str, str]]]:
    """Return the program in Relax, and the origins of its variables.

    Raises:
        UnsupportedOperators: nodes without a conversion; if there are none, the nodes whose conversion fails.
        CompileError: TVM fails in another way.
    """
    importer = TorchImporter()
    places = list(_unsupported(program, importer.convert_map))
    if places:
        raise unsupported(name, places)
    origins: dict[str, tuple[str, str]] = {}
    failed: list[Place] = []
    importer.convert_map = {
        each: _noting(convert, importer, origins, failed) for each, convert in importer.convert_map.items()
    }
    try:
        module = importer.from_exported_program(program, False, True, False, None)
    except Exception as error:  # a failed node had no stand-in
        if not failed:
            raise CompileError(f"{name}: TVM cannot import it: {error}", model=name, stage="import") from error
        raise unsupported(name, failed) from error
    if failed:
        raise unsupported(name, failed)
    main = module["main"]
    for attribute in ("tir_var_lower_bound", "tir_var_upper_bound"):  # bounds of sizes that get a value next
        main = main.without_attr(attribute) if attribute in (main.attrs or {}) else main
    module["main"] = main
    return module, origins


def where(node: fx.Node) -> str:
    """Return a node's name, its module's path, and the line of the program that it comes from."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    lines = [found for found in _LINE.findall(node.meta.get("stack_trace") or "") if "/torch/" not in found[0]]
    line = f", {Path(lines[-1][0]).name}:{lines[-1][1]} in {lines[-1][2]}" if lines else ""
    return f"node {node.name!r}" + (f" of {path!r}" if path else "") + line


def _decomposed(program: ExportedProgram, name: str) -> ExportedProgram:
    """Return the program in core ATen operators.

    Raises:
        InvalidModel: it changes its state, or a result is no tensor.
        CompileError: torch cannot decompose it.
    """
    try:
        program = program.run_decompositions(decompositions())
    except Exception as error:  # torch's own, of any kind
        raise CompileError(f"{name}: torch cannot decompose it: {error}", model=name, stage="import") from error
    signature = program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        message = f"{name} changes {', '.join(changed)}: a kTask keeps no state; in training mode, call .eval() first"
        raise InvalidModel(message, model=name, names=tuple(changed))
    for index, output in enumerate(signature.output_specs):
        if output.kind is OutputKind.USER_OUTPUT and not isinstance(output.arg, TensorArgument):
            raise InvalidModel(f"{name}: output {index} is no tensor", model=name)
    return program


def _exported(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], name: str) -> ExportedProgram:
    try:
        return torch.export.export(model, (), dict(tensors))
    except Exception as error:  # the module's own forward ran
        message = f"{name}: torch cannot export it: {error}"
        raise CompileError(message, model=name, stage="import") from error


def _example(given: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the example as a tensor of this shape, with the example's rows repeated or left out."""
    if isinstance(given, torch.Tensor):
        tensor = given
    elif isinstance(given, np.ndarray):
        tensor = torch.from_numpy(np.ascontiguousarray(given))
    else:
        tensor = torch.zeros(tuple(given.shape), dtype=getattr(torch, str(given.dtype)))
    if tuple(tensor.shape) == shape:
        return tensor
    return tensor[torch.arange(shape[0]) % tensor.shape[0]]


def _unsupported(program: ExportedProgram, known: Mapping[str, Any]) -> Iterator[Place]:
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            reason = "it draws random numbers; of a model in training mode, call .eval() first"
            yield Place(str(node.target), where(node), reason)
        elif getattr(node.target, "__name__", "") not in known:
            yield Place(str(node.target), where(node), "TVM has no conversion of it")


def _noting(
    convert: Callable[[fx.Node], Any], importer: TorchImporter, origins: dict[str, tuple[str, str]], failed: list[Place]
) -> Callable[[fx.Node], Any]:
    """Return a conversion that notes the origins of its results, and notes failures and gives zeros instead."""

    def noting(node: fx.Node) -> Any:
        try:
            made = convert(node)
            reason = difference(node, made)
        except Exception as error:  # noqa: BLE001 - TVM's and torch's, of any kind: a place in the error
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if reason:
            failed.append(Place(str(node.target), where(node), reason))
            made = importer.stand_in(node)
            if made is None:
                raise TypeError(reason)
        if isinstance(made, relax.Var):
            origins.setdefault(made.name, (str(node.target), where(node)))
        return made

    return noting


def _output_names(program: ExportedProgram) -> tuple[str, ...]:
    """Return the keys of a dict that the model returns; nothing for other kinds of results."""
    tree = program.call_spec.out_spec
    if tree is None or tree.type is not dict:
        return ()
    return tuple(str(key) for key in tree.context)
