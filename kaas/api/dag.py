"""A Function's invocation as a node of a Ray DAG: the result of `Function.bind`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.dag import DAGNode


class FunctionNode(DAGNode):
    """Invoke a function each time the DAG is executed, with the values of the nodes among its inputs.

    remote: `Function.remote` of the function.
    """

    def __init__(self, remote: Callable[..., Any], args: Any, kwargs: Any, options: Any, others: Any = None) -> None:
        self._remote = remote
        super().__init__(args, kwargs, options, other_args_to_resolve=others)

    def _copy_impl(self, new_args: Any, new_kwargs: Any, new_options: Any, new_other_args_to_resolve: Any) -> Any:
        return FunctionNode(self._remote, new_args, new_kwargs, new_options, new_other_args_to_resolve)

    def _execute_impl(self, *_: Any, **__: Any) -> Any:
        return self._remote(*self._bound_args, **self._bound_kwargs)

    def __str__(self) -> str:
        return f"{self._remote!r}.bind(...)"
