"""The pool of a Ray job's program, in Ray's key-value store, so that the tasks of the job find it."""

from __future__ import annotations

import msgspec
import ray
from ray.experimental import internal_kv

from kaas.errors import NotInitialized
from kaas.pool.on_ray.cluster import NAMESPACE


class Program(msgspec.Struct):
    """The pool of a program and its client name there, for the tasks of its Ray job."""

    pool: str
    client: str


def note_program(pool: str, client: str) -> None:
    """Let the tasks of this process's Ray job find its pool. A task sets the pool only if its program has none."""
    noted = msgspec.json.encode(Program(pool, client))
    internal_kv._internal_kv_put(_job_key(), noted, not in_ray_worker(), namespace=NAMESPACE)


def _program() -> Program | None:
    """Return the entry of `note_program`, or None."""
    noted = internal_kv._internal_kv_get(_job_key(), namespace=NAMESPACE)
    return None if noted is None else msgspec.json.decode(noted, type=Program)


def program_pool() -> str:
    """Return the pool of the program that started this task.

    Raises:
        NotInitialized: the program has no pool.
    """
    program = _program()
    if program is None:
        raise NotInitialized("call kaas.init() first, in the program that started this task or here")
    return program.pool


def forget_program(name: str) -> None:
    """Remove the entry of `note_program`, if it names this pool."""
    program = _program()
    if program is not None and program.pool == name:
        internal_kv._internal_kv_del(_job_key(), namespace=NAMESPACE)


def _job_key() -> bytes:
    return f"program of job {ray.get_runtime_context().get_job_id()}".encode()


def client(program_here: str) -> str:
    """Return the client of this Ray job, the same in its program and in all of its tasks.

    Args:
        program_here: name of this process's program, if the process runs no task.
    """
    job = ray.get_runtime_context().get_job_id()
    if not in_ray_worker():
        return f"{program_here} job {job}"
    program = _program()
    return f"job {job}" if program is None else program.client


def in_ray_worker() -> bool:
    """Return True if Ray started this process for a task or an actor."""
    return bool(ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE)
