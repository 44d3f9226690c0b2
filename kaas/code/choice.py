"""The choice among the images of a library: the same where code is compiled ahead and where it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def chosen(images: Iterable[T], whole: Callable[[T], bool], leave: Callable[[T], object] = lambda _: None) -> T | None:
    """Return the first image that is whole, else the first; None if there is none.

    Args:
        images: those that a device can load, in the library's order. None is taken after a whole one.
        whole: True if the device can run every kernel of the image.
        leave: called with each image that was taken, and is not the result.
    """
    partial: T | None = None
    for image in images:
        if whole(image):
            if partial is not None:
                leave(partial)
            return image
        if partial is None:
            partial = image
        else:
            leave(image)
    return partial
