"""Relax modules, and TVM's own `nn` modules, which are exported to Relax."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.frontend import nn

from tvm_backend.errors import CompileError, InvalidModel
from tvm_backend.frontends.content import Digest, feed, feed_all
from tvm_backend.frontends.imported import Imported, Prepared
from tvm_backend.frontends.parts import Part, merged, output_names, tensor_inputs
from tvm_backend.frontends.shapes import Input, bindings, by_name, dtype_of, open_batch
from tvm_backend.frontends.specialised import closed

Parts = tuple[list[Part], dict[str, tvm.runtime.Tensor]]
"""The model for each batch size, and its parameters by name."""


def prepared(model: Any, examples: Any, batch_sizes: Sequence[int] | None, name: str) -> Prepared:
    """Prepare a Relax module or an nn module."""
    read = parts_of_nn if isinstance(model, nn.Module) else parts_of_relax
    parts, constants = read(model, examples, batch_sizes, name)

    def imported() -> Imported:
        module, entries = merged(name, parts)
        return Imported(name, module, entries, {each: value.numpy() for each, value in constants.items()})

    return Prepared(lambda digest: _feed(digest, parts), imported)


def parts_of_relax(module: tvm.IRModule, examples: Any, batch_sizes: Sequence[int] | None, name: str) -> Parts:
    """Return a Relax module for each batch size, with its parameters.

    The module's function `main`, or its only one, is the model. The function's parameters are the model's inputs,
    except those beyond `num_input`: TVM's frontends leave their values in the function's attribute `params`.

    Raises:
        InvalidModel: no such function, or a parameter is no tensor or has no value.
    """
    function = _main(module, name)
    module, constants = _with_parameters(alone(module, function), function, name)
    tensor_inputs(name, module[function].params)
    inputs = tuple(_declared(parameter) for parameter in module[function].params)
    names = tuple(each.name for each in inputs)
    parts = []
    for binding in bindings(name, inputs, by_name(name, names, examples), batch_sizes):
        bound = closed(module, function, binding.sizes)
        parts.append(Part(binding.batch_size, bound, function, names, output_names(bound[function].ret_ty)))
    return parts, constants


def parts_of_nn(model: nn.Module, examples: Any, batch_sizes: Sequence[int] | None, name: str) -> Parts:
    """Return an nn module, exported for each batch size, with its parameters, which must have values.

    Its method `forward` is the model. `examples` has an array for each argument of `forward`, or an `nn.spec.Tensor`,
    whose shape may name open dimensions.

    Raises:
        InvalidModel: a parameter has no value, or an example is missing or wrong.
    """
    arguments = tuple(inspect.signature(model.forward).parameters)
    given = by_name(name, arguments, examples)
    missing = tuple(each for each in arguments if each not in given)
    if missing:
        message = f"{name} says nothing of its inputs' shapes: example_inputs needs {', '.join(missing)}"
        raise InvalidModel(message, model=name, names=missing)
    inputs = _specified({each: given[each] for each in arguments}, batch_sizes is not None)
    parts, values = [], dict[str, tvm.runtime.Tensor]()
    for binding in bindings(name, inputs, {}, batch_sizes):
        specification = {each.name: nn.spec.Tensor(binding.shape(each), each.dtype) for each in inputs}
        module, parameters = _exported(model, specification, name)
        values = _values(parameters, name)
        variables = module["forward"].params[len(inputs) :]  # in order: the export may have replaced dots in names
        bound = dict(zip(variables, values.values(), strict=True))
        module = relax.transform.BindParams("forward", bound)(module)
        tensor_inputs(name, module["forward"].params)
        names = output_names(module["forward"].ret_ty)
        parts.append(Part(binding.batch_size, module, "forward", arguments, names))
    return parts, values


def _main(module: tvm.IRModule, name: str) -> str:
    functions = [each.name_hint for each, value in module.functions.items() if isinstance(value, relax.Function)]
    public = [each for each in functions if "global_symbol" in (module[each].attrs or {})] or functions
    if "main" in functions:
        return "main"
    if len(public) == 1:
        return str(public[0])
    message = f"{name}: a Relax module needs a function 'main', or a single one; it has {', '.join(public) or 'none'}"
    raise InvalidModel(message, model=name, names=tuple(public))


def alone(module: tvm.IRModule, function: str) -> tvm.IRModule:
    """Return the module with one Relax function, and the functions that it calls inlined: no kTask calls another."""
    module = module.clone()
    for variable, other in module.functions.items():
        if isinstance(other, relax.Function) and variable.name_hint != function:
            module[variable] = other.without_attr("global_symbol") if "global_symbol" in (other.attrs or {}) else other
    module = relax.transform.InlinePrivateFunctions()(module)
    kept = {
        variable: each
        for variable, each in module.functions.items()
        if not isinstance(each, relax.Function) or variable.name_hint == function
    }
    return tvm.IRModule(kept, attrs=module.attrs)


def _with_parameters(
    module: tvm.IRModule, function: str, name: str
) -> tuple[tvm.IRModule, dict[str, tvm.runtime.Tensor]]:
    main = module[function]
    attributes = main.attrs or {}
    count = int(attributes["num_input"]) if "num_input" in attributes else len(main.params)
    parameters = main.params[count:]
    values = list(attributes["params"]) if "params" in attributes else []
    if len(values) != len(parameters):
        missing = tuple(each.name for each in parameters[len(values) :])
        message = f"{name}: no values for the parameters {', '.join(missing)}; bind them by relax.transform.BindParams"
        raise InvalidModel(message, model=name, names=missing)
    named = {each.name: value for each, value in zip(parameters, values, strict=True)}
    module = module.clone()
    module[function] = main.without_attr("params") if "params" in attributes else main
    if named:
        module = relax.transform.BindParams(function, named)(module)
    return module, named


def _declared(parameter: relax.Var) -> Input:
    shape = tuple(int(size) if isinstance(size, tvm.tirx.IntImm) else str(size) for size in parameter.ty.shape)
    return Input(parameter.name, shape, str(parameter.ty.dtype))


def _specified(given: Mapping[str, Any], batched: bool) -> tuple[Input, ...]:
    if any(isinstance(size, str) for example in given.values() for size in example.shape):
        return tuple(Input(each, tuple(example.shape), dtype_of(example)) for each, example in given.items())
    return open_batch(given, batched)


def _values(parameters: Sequence[tuple[str, nn.Parameter]], name: str) -> dict[str, tvm.runtime.Tensor]:
    unset = tuple(each for each, parameter in parameters if parameter.data is None)
    if unset:
        message = f"{name}: parameters without values: {', '.join(unset)}; set their .data, or call load_state_dict"
        raise InvalidModel(message, model=name, names=unset)
    return {each: parameter.data for each, parameter in parameters}


def _exported(
    model: nn.Module, specification: Mapping[str, Any], name: str
) -> tuple[tvm.IRModule, Sequence[tuple[str, nn.Parameter]]]:
    try:
        module, parameters = model.export_tvm({"forward": dict(specification)})
    except Exception as error:  # the module's own forward ran
        message = f"{name}: its forward cannot be exported: {error}"
        raise CompileError(message, model=name, stage="import") from error
    return module, parameters


def _feed(digest: Digest, parts: Sequence[Part]) -> None:
    """Feed TVM's hash of the modules' structure, which leaves the constants out, and then the constants in order."""
    for part in parts:
        structure = tvm_ffi.structural_hash(part.module, skip_tensor_content=True)
        feed(digest, f"{part.batch_size} {part.function} {part.inputs} {structure}")
        constants: list[Any] = []
        for _, function in sorted(part.module.functions.items(), key=lambda item: item[0].name_hint):
            tvm_ffi.structural_walk(function, (tvm.ir.GenericConst, constants.append))
        for constant in constants:
            feed(digest, f"{constant.value.dtype} {tuple(constant.value.shape)}")
        feed_all(digest, (constant.value.numpy().reshape(-1).view("uint8") for constant in constants))
