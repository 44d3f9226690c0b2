"""Applications of Ray Serve, as its users write them, and a Serve that runs one."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from kaas.peers.systems import PeerSystem, part_of


class EchoApplication:
    """Returns 4 KB, whichever way they come."""

    async def __call__(self, request: Any) -> Any:
        """Return the body of an HTTP request, or the message of a gRPC call."""
        if hasattr(request, "body"):
            return import_module("starlette.responses").Response(await request.body())
        return import_module("ray.serve.generated.serve_pb2").UserDefinedResponse(greeting=request.name)

    async def echo(self, data: Any) -> Any:
        """Return the argument."""
        return data


def free_port() -> int:
    """Return a port that no process uses now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def serving(application: type, port: int, grpc_port: int = 0, *, instances: Sequence[Any] = ((),)) -> Iterator[Any]:
    """Give the handles of an application's instances while Serve runs them: the first at `/`, by HTTP and by gRPC.

    Args:
        application: the class.
        port: of HTTP.
        grpc_port: of gRPC; 0: none.
        instances: the arguments of each.
    """
    serve: Any = import_module("ray.serve")
    functions = ["ray.serve.generated.serve_pb2_grpc.add_UserDefinedServiceServicer_to_server"]
    grpc = serve.config.gRPCOptions(port=grpc_port, grpc_servicer_functions=functions) if grpc_port else None
    deployment: Any = serve.deployment(max_ongoing_requests=256, logging_config={"enable_access_log": False})(
        application
    )
    serve.start(http_options=serve.config.HTTPOptions(host="127.0.0.1", port=port), grpc_options=grpc)
    try:
        yield [
            serve.run(deployment.bind(*arguments), name=f"application-{number}", route_prefix=f"/{number or ''}")
            for number, arguments in enumerate(instances)
        ]
    finally:
        with part_of(PeerSystem.SERVE):
            serve.shutdown()


@contextmanager
def quiet_ray() -> Iterator[None]:
    """Run a Ray of this machine whose processes write nothing to this program's output."""
    import ray

    from kaas.pool.on_ray.cluster import SOFTWARE_RESOURCE

    ray.init(address="local", log_to_driver=False, logging_level=logging.ERROR, resources={SOFTWARE_RESOURCE: 8})
    try:
        yield
    finally:
        ray.shutdown()
