"""MetaSchedule trials: measured schedules replace dlight's schedules where they are faster."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import meta_schedule
from tvm.s_tir.stmt import SBlock

import kaas
from tvm_backend.errors import CompileError
from tvm_backend.lowering import Schedule, by_dlight
from tvm_backend.progress import Progress, Report
from tvm_backend.targets import Target
from tvm_backend.trials import Bench, Builder, Runner, TrialFailed, bench, build

RULES = "cuda"
"""MetaSchedule's rules for GPUs, without those for tensor cores."""

MOST_AT_ONCE, FEWEST_AT_ONCE = 64, 4
"""The most and the fewest candidates of a task in one round of the search; a round learns from those before."""

TOLERANCE = 1e-3
"""The largest difference between results of two schedules, as a share of the largest result."""

BROKEN_FFI = (0, 1, 15)
"""The first release of apache-tvm-ffi that ends the process when TVM 0.27 writes an expression as JSON."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """The tuning of one model.

    Fields:
        model: its name, for errors.
        trials: the number of candidates to measure for the whole model.
        device: the kind of device to measure on.
        folder: the folder of the databases.
        report: called after every trial.
    """

    model: str
    trials: int
    target: Target
    device: str
    folder: Path
    report: Report

    def schedule(self, module: tvm.IRModule) -> tvm.IRModule:
        """Tune the functions that are worth it. All others, and those without a faster schedule, get dlight's.

        Raises:
            DeviceUnavailable: there is no device to measure on.
            CompileError: no candidate of any function could be built and run, or the installed tvm_ffi would end the
                process.
        """
        check_runtime(self.model)
        tasks = worthwhile(module, self.target)
        if not tasks:
            return by_dlight(module)
        with bench(self.device) as where:
            where.start()
            digest = hashlib.sha256(f"{self.target.tvm} {where.device_name} {version('apache-tvm')}".encode())
            for script in sorted(task.mod.script() for task in tasks):
                digest.update(script.encode())
            with records(self.folder / digest.hexdigest()[:32]) as kept:
                if kept.trials < self.trials:
                    self.tune(tasks, kept, where)
                    self.choose(tasks, kept, where)
                    kept.finish(self.trials)
                with kept.chosen():
                    module = relax.transform.MetaScheduleApplyDatabase()(module)
        return by_dlight(module)

    def tune(self, tasks: list[Any], kept: Records, where: Bench) -> None:
        """Run the trials that the records lack.

        Raises:
            CompileError: no candidate of any function could be built and run.
        """
        problems: list[str] = []
        done = 0

        def finished(problem: str | None) -> None:
            nonlocal done
            done += 1
            if problem:
                problems.append(problem)
            self.report(Progress("tune", min(done, trials), trials, problem or ""))

        trials = self.trials - kept.trials
        self.report(Progress("tune", 0, trials, f"{len(tasks)} functions"))
        learned = importlib.util.find_spec("xgboost") is not None
        with tempfile.TemporaryDirectory(prefix="kaas-tune-") as folder:
            meta_schedule.tune_tasks(
                tasks=[context(task, learned, seed=kept.trials + 1) for task in tasks],
                task_weights=[float(task.weight) for task in tasks],
                work_dir=folder,
                max_trials_global=trials,
                num_trials_per_iter=max(FEWEST_AT_ONCE, min(MOST_AT_ONCE, trials // len(tasks))),
                builder=Builder(self.target, Path(folder), finished),
                runner=Runner(where, finished),
                database=kept.database,
                measure_callbacks=[meta_schedule.measure_callback.AddToDatabase()]
                + ([meta_schedule.measure_callback.UpdateCostModel()] if learned else []),
                cost_model="xgb" if learned else "random",
            )
        self.report(Progress("tune", trials, trials))
        if not any(best(kept.database, task) for task in tasks):
            reason = problems[-1] if problems else "none could be built"
            message = f"tuning {self.model}: none of {trials} candidates runs: {reason}"
            raise CompileError(message, model=self.model, stage="tune")

    def choose(self, tasks: list[Any], kept: Records, where: Bench) -> None:
        """Keep the best candidate of each function if it is correct and faster than dlight's schedule."""
        for path in kept.folder.glob("chosen_*"):
            path.unlink()
        chosen = kept.chosen()
        with tempfile.TemporaryDirectory(prefix="kaas-tune-") as folder:
            for task in tasks:
                record = best(kept.database, task)
                if record is None:
                    continue
                schedule = tvm.s_tir.Schedule(task.dispatched[0])
                record.trace.apply_to_schedule(schedule, remove_postproc=False)
                with self.target.tvm:
                    usual = by_dlight(tvm.IRModule(dict(task.dispatched[0].functions)))  # dlight changes its argument
                if faster(schedule.mod, usual, self.target, where, Path(folder)):
                    workload = chosen.commit_workload(task.dispatched[0])
                    kind = meta_schedule.database.TuningRecord
                    chosen.commit_tuning_record(
                        kind(record.trace, workload, record.run_secs, self.target.tvm, record.args_info)
                    )


@dataclass(slots=True)
class Records:
    """The measurements of one model on one device, in a folder that one process at a time holds.

    Fields:
        trials: the number of candidates measured by runs that finished.
    """

    folder: Path
    trials: int
    database: Any

    def chosen(self) -> Any:
        """Return the database of the schedules to apply."""
        return meta_schedule.database.JSONDatabase(
            str(self.folder / "chosen_workload.json"), str(self.folder / "chosen_record.json")
        )

    def finish(self, trials: int) -> None:
        """Record that so many trials are finished."""
        (self.folder / "trials").write_text(str(trials))
        self.trials = trials


@contextmanager
def records(folder: Path) -> Iterator[Records]:
    """Yield a folder's records, and lock the folder meanwhile. Damaged records are removed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            found = _opened(folder)
        except (ValueError, TypeError, RuntimeError):  # raised by TVM and int for a damaged file
            for path in folder.glob("*_*.json"):
                path.unlink()
            (folder / "trials").unlink(missing_ok=True)
            found = _opened(folder)
        yield found


def _opened(folder: Path) -> Records:
    finished = folder / "trials"
    made = Records(
        folder,
        int(finished.read_text()) if finished.exists() else 0,
        meta_schedule.database.JSONDatabase(work_dir=str(folder)),
    )
    made.chosen()
    return made


def worthwhile(module: tvm.IRModule, target: Target) -> list[Any]:
    """Return MetaSchedule's tasks for functions with a reduction, those with the most operations first.

    Functions of the same content are one task. Its weight is the number of their calls.
    """
    tasks = [
        task
        for task in meta_schedule.relax_integration.extract_tasks(module, target.tvm)
        if reduces(task.dispatched[0]["main"])
    ]

    def cost(task: Any) -> tuple[float, str]:
        return -float(task.weight) * tvm.s_tir.analysis.estimate_tir_flops(task.dispatched[0]), str(task.task_name)

    return sorted(tasks, key=cost)


def reduces(function: tirx.PrimFunc) -> bool:
    """Return True if a function has a reduction and no schedule yet."""
    if function.attrs is not None and function.attrs.get("tirx.is_scheduled", False):
        return False
    found = False

    def visit(block: Any) -> None:
        nonlocal found
        found = found or any(int(axis.iter_type) == tirx.IterVar.CommReduce for axis in block.iter_vars)

    tvm_ffi.structural_walk(function.body, ((SBlock, visit),), order="pre")
    return found


def context(task: Any, learned: bool, seed: int) -> Any:
    """Return MetaSchedule's context for a task.

    If `learned`, candidates evolve by a cost model that learns from measurements; else they are drawn at random.
    """
    strategies = meta_schedule.search_strategy
    made = meta_schedule.TuneContext.__new__(meta_schedule.TuneContext)
    # the class's own constructor imports TVM's tensor intrinsics, which takes half a minute; RULES need none of them
    made.__init_handle_by_constructor__(
        meta_schedule._ffi_api.TuneContext,
        task.dispatched[0],
        task.target,
        meta_schedule.space_generator.PostOrderApply(sch_rules=RULES, postprocs=RULES, mutator_probs=RULES),
        strategies.EvolutionarySearch() if learned else strategies.ReplayTrace(),
        task.task_name,
        os.cpu_count(),
        seed,
        lambda *_: None,  # no log: the results of builder and runner say the same
    )
    meta_schedule._ffi_api.TuneContextInitialize(made)
    return made


def best(database: Any, task: Any) -> Any | None:
    """Return the fastest candidate that ran, or None. The database has failed candidates with an hour or more."""
    workload = database.commit_workload(task.dispatched[0])
    for record in database.get_top_k(workload, 1):
        if record.run_secs and float(record.run_secs[0]) < 3600:
            return record
    return None


def faster(candidate: tvm.IRModule, usual: tvm.IRModule, target: Target, where: Bench, folder: Path) -> bool:
    """Return True if a candidate gives the results of the usual schedule in less time, or if only it runs."""
    seconds, outputs = [], []
    for name, module in (("candidate", candidate), ("usual", usual)):
        results = folder / f"{name}.npz"
        try:
            seconds.append(min(where.measure(build(module, target, folder / name), results)))
        except TrialFailed:
            return name == "usual"
        with np.load(results) as file:
            outputs.append({key: file[key] for key in file.files})
    return seconds[0] < seconds[1] and all(_close(outputs[0][key], value) for key, value in outputs[1].items())


def _close(given: Any, expected: Any) -> bool:
    largest = float(np.abs(expected).max(initial=0.0))
    return np.allclose(given, expected, rtol=0, atol=TOLERANCE * largest, equal_nan=True)


def check_runtime(model: str) -> None:
    """Check the installed tvm_ffi.

    Raises:
        CompileError: it would end the process.
    """
    found = version("apache-tvm-ffi")
    if tuple(int(part) for part in found.split(".")[:3]) >= BROKEN_FFI:
        message = f"tuning needs apache-tvm-ffi < 0.1.15: TVM 0.27 cannot write its records with {found}"
        raise CompileError(message, model=model, stage="tune")


def tuned(model: str, trials: int, target: Target, device: str, report: Report) -> Schedule:
    """Return a schedule for `lowering.lowered` that runs so many trials, or takes the results of earlier ones."""
    folder = kaas.cache_root() / "tuning"
    return Tuning(model, trials, target, device, folder, report).schedule
