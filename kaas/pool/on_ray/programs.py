"""The pool that a Ray job's program uses, noted in Ray's key-value store, where the tasks of the job find it."""

from __future__ import annotations

import msgspec
import ray
from ray.experimental import internal_kv

from kaas.errors import NotInitialized
from kaas.pool.on_ray.cluster import NAMESPACE


class Program(msgspec.Struct):
    """The pool of a program, and its client there, for the tasks of its Ray job."""

    pool: str
    client: str


def note_program(pool: str, client: str) -> None:
    """Let the tasks of this process's Ray job find its pool. A task does so only for a program that has none."""
    noted = msgspec.json.encode(Program(pool, client))
    internal_kv._internal_kv_put(_job_key(), noted, not in_ray_worker(), namespace=NAMESPACE)


def _program() -> Program | None:
    """Return what `note_program` noted."""
    noted = internal_kv._internal_kv_get(_job_key(), namespace=NAMESPACE)
    return None if noted is None else msgspec.json.decode(noted, type=Program)


def program_pool() -> str:
    """Return the pool of the program that started this task.

    Raises:
        NotInitialized: that program has none.
    """
    program = _program()
    if program is None:
        raise NotInitialized("call kaas.init() first, in the program that started this task or here")
    return program.pool


def forget_program(name: str) -> None:
    """Forget what was noted, if it names this pool."""
    program = _program()
    if program is not None and program.pool == name:
        internal_kv._internal_kv_del(_job_key(), namespace=NAMESPACE)


def _job_key() -> bytes:
    return f"program of job {ray.get_runtime_context().get_job_id()}".encode()


def client(program_here: str) -> str:
    """Return the client of this Ray job, the same in its program and in all of its tasks.

    Args:
        program_here: name of the program that this process runs, if it is no task.
    """
    job = ray.get_runtime_context().get_job_id()
    if not in_ray_worker():
        return f"{program_here} job {job}"
    program = _program()
    return f"job {job}" if program is None else program.client


def in_ray_worker() -> bool:
    """Return whether this process is one that Ray started for a task or an actor."""
    return bool(ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE)
