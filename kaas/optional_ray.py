"""Ray, for what needs it: programs that do without may leave it out."""

from __future__ import annotations

from kaas.errors import MissingPackage


def check_ray() -> None:
    """
    Raises:
        MissingPackage: Ray is not installed.
    """
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "ray":  # it is here, and lacks something of its own
            raise
        message = "Ray is not installed: pip install ray, or do without it (ray=False, --no-ray of a command)"
        raise MissingPackage(message, package="ray", install="ray") from error
