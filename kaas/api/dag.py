"""A Function's invocation as a node of a Ray DAG: what `Function.bind` gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.dag import DAGNode

if TYPE_CHECKING:
    from kaas.api.function import Function


class FunctionNode(DAGNode):
    """Invokes the function each time the DAG is executed, with what the nodes among its inputs have given."""

    def __init__(self, function: Function, args: Any, kwargs: Any, options: Any, others: Any = None) -> None:
        self._function = function
        super().__init__(args, kwargs, options, other_args_to_resolve=others)

    def _copy_impl(self, new_args: Any, new_kwargs: Any, new_options: Any, new_other_args_to_resolve: Any) -> Any:
        return FunctionNode(self._function, new_args, new_kwargs, new_options, new_other_args_to_resolve)

    def _execute_impl(self, *_: Any, **__: Any) -> Any:
        return self._function.remote(*self._bound_args, **self._bound_kwargs)

    def __str__(self) -> str:
        return f"{self._function!r}.bind(...)"
