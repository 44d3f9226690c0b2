"""The check that Ray is installed: programs that do not need it may leave it out."""

from __future__ import annotations

from kaas.errors import MissingPackage


def check_ray() -> None:
    """Check that Ray is installed.

    Raises:
        MissingPackage: it is not.
    """
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "ray":  # Ray is here, and lacks a package of its own
            raise
        message = "Ray is not installed: pip install ray, or do without it (ray=False, --no-ray of a command)"
        raise MissingPackage(message, package="ray", install="ray") from error
