"""The steps from a model to a `kaas.CompiledModel`."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kaas
from tvm_backend import frontends, store
from tvm_backend.errors import CompileError, InvalidOption, unsupported
from tvm_backend.progress import Progress, Report, reporting

if TYPE_CHECKING:
    from tvm_backend.frontends.imported import Imported
    from tvm_backend.lowering import Lowered, Schedule
    from tvm_backend.targets import Target

TUNE_DEVICE = "KAAS_TUNE_DEVICE"
"""The environment variable that names the kind of device to measure on: "gpu" by default, "software" to try tuning."""


_tvm = threading.RLock()
"""TVM keeps its state in variables of its modules, and `lowering.replaced` changes them: one thread at a time."""


def compile(  # noqa: A001 - as the command is called
    model: Any,
    example_inputs: Any = None,
    *,
    target: str = "sm_80+ptx",
    batch_sizes: Sequence[int] | None = None,
    name: str | None = None,
    tune: int = 0,
    progress: Report | None = None,
) -> kaas.CompiledModel:
    """Compile a model into a kTask for each batch size, one library of their kernels, and the constants.

    The store has the models that were compiled before from equal content with equal options, except tuned ones. The
    environment variable KAAS_MODEL_CACHE=0 turns the store off. Threads of one process compile one after the other.

    Args:
        model: the path of an ONNX file or of a file that torch.export.save wrote; an onnx.ModelProto, a
            torch.export.ExportedProgram, a torch.nn.Module, a Relax tvm.IRModule or a tvm.relax.frontend.nn.Module.
        example_inputs: arrays, tensors or kaas.Buffers, for their shapes and dtypes: by the inputs' names, in the
            model's order, or a single one. torch.nn and nn modules need them; other models need them if they leave
            sizes other than the batch open.
        target: GPU architectures, joined by "+"; "ptx" last, for newer GPUs than the last.
        batch_sizes: sizes of the first dimension. By default the model's or the examples' own; 1 if both leave it open.
        name: of the model; by default the file's or the graph's.
        tune: MetaSchedule trials to run on this machine's GPU; 0 takes dlight's schedules as they are.
        progress: called with a `Progress` at each step; by default a terminal shows the steps on a line.

    Raises:
        InvalidOption, InvalidModel: an argument has no meaning. InvalidTarget: no such architecture.
        UnsupportedOperators: parts of the model cannot become kernels; the error lists all of them with their places.
        CompileError: TVM or a frontend failed.
    """
    options = Options.checked(model, target, batch_sizes, name, tune)
    with reporting(progress) as report:
        with _tvm:
            prepared = frontends.prepared(model, example_inputs, options.batch_sizes, options.name)
        stored = None if options.tune else store.store()  # a tuned model depends on the device; trials keep records
        if stored is None:
            return _made(prepared, options, report)
        report(Progress("cache", 0, 1))
        key = store.key(prepared, f"{options} {_shapes(example_inputs)}")
        found = stored.get(key)
        report(Progress("cache", 1, 1, "found" if found else "not there"))
        if found is None:
            found = _made(prepared, options, report)
            stored.put(key, found)
        return found


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `compile`, checked as far as possible without TVM, which takes seconds to import."""

    name: str
    target: str
    batch_sizes: tuple[int, ...] | None
    tune: int
    tune_device: str
    """The kind of device to measure on: a schedule found on one kind is not valid for another."""

    @classmethod
    def checked(cls, model: Any, target: str, batch_sizes: Any, name: str | None, tune: int) -> Options:
        """Return the checked options.

        Raises:
            InvalidOption: an option has no meaning.
        """
        if not isinstance(target, str):
            raise InvalidOption(f'target is a string such as "sm_80+ptx", not {target!r}', option="target")
        if batch_sizes is not None:
            single = isinstance(batch_sizes, int) and not isinstance(batch_sizes, bool)
            sizes = (batch_sizes,) if single else tuple(batch_sizes) if isinstance(batch_sizes, Sequence) else ()
            if not sizes or not all(type(size) is int and size > 0 for size in sizes):
                message = f"batch_sizes is a sequence of one or more positive integers, not {batch_sizes!r}"
                raise InvalidOption(message, option="batch_sizes")
            batch_sizes = tuple(sorted(set(sizes)))
        if type(tune) is not int or tune < 0:
            raise InvalidOption(f"tune is a number of trials, 0 or more, not {tune!r}", option="tune")
        if name is not None and not (isinstance(name, str) and name):
            raise InvalidOption(f"name is a string that is not empty, not {name!r}", option="name")
        device = os.environ.get(TUNE_DEVICE, "gpu") if tune else ""
        return cls(name or _name_of(model), target, batch_sizes, tune, device)


def _name_of(model: Any) -> str:
    """Return the name of a model: a file's stem, an ONNX graph's name, or a class's name."""
    if isinstance(model, str | PathLike):
        found = Path(model).stem
    elif frontends.kind(model) == "onnx":
        found = model.graph.name
    elif type(model).__name__ in ("IRModule", "ExportedProgram", "GraphModule"):
        found = ""
    else:
        found = type(model).__name__
    return re.sub(r"[^\w.-]", "_", found) or "model"


def _shapes(examples: Any) -> list[tuple[str, str, str]]:
    """Return the name, shape and dtype of each example: the parts of examples that the result depends on."""
    if isinstance(examples, Mapping):
        named = [(str(name), example) for name, example in examples.items()]
    else:
        listed = examples if isinstance(examples, list | tuple) else [] if examples is None else [examples]
        named = [(str(index), example) for index, example in enumerate(listed)]
    return [(name, str(getattr(each, "shape", None)), str(getattr(each, "dtype", None))) for name, each in named]


def _made(prepared: frontends.Prepared, options: Options, report: Report) -> kaas.CompiledModel:
    with _tvm:
        report(Progress("import", 0, 1, "TVM"))
        from tvm_backend import library, targets, tasks

        target = targets.parsed(options.target)
        imported = prepared.imported()
        report(Progress("import", 1, 1))
        lowered = _lowered(imported, target, options, report)
        report(Progress("library", 0, 1, f"{len(lowered.device)} kernels"))
        made = library.library(lowered.source, target)
        report(Progress("library", 1, 1))
        report(Progress("tasks", 0, len(imported.functions)))
        variants, constants = tasks.tasks(lowered, imported, made)
        report(Progress("tasks", len(variants), len(variants)))
        return kaas.CompiledModel(options.name, variants, constants, _about(target, options))


def _lowered(imported: Imported, target: Target, options: Options, report: Report) -> Lowered:
    """Lower the imported module.

    Raises:
        UnsupportedOperators: the operators that TVM fails at.
        CompileError: TVM failed in another way.
    """
    from tvm_backend import culprits, lowering

    report(Progress("lower", 0, 1, f"{len(imported.functions)} functions"))
    try:
        schedule = _schedule(target, options, report)
        lowered = lowering.lowered(imported.module, target, schedule, imported.constants, options.name)
    except kaas.KaasError:
        raise
    except Exception as error:
        if places := culprits.culprits(imported, target):
            raise unsupported(options.name, places) from error
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        message = f"TVM cannot lower {options.name}: {reason}"
        raise CompileError(message, model=options.name, stage="lower") from error
    report(Progress("lower", 1, 1))
    return lowered


def _schedule(target: Target, options: Options, report: Report) -> Schedule:
    from tvm_backend import lowering

    if not options.tune:
        return lowering.by_dlight
    from tvm_backend.tuning import tuned

    return tuned(options.name, options.tune, target, options.tune_device, report)


def _about(target: Target, options: Options) -> dict[str, str]:
    about = {"compiler": "kaas-gpu-tvm", "tvm": version("apache-tvm"), "target": target.name}
    return about | ({"tune": str(options.tune)} if options.tune else {})
