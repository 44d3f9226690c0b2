"""Code that the driver has loaded: libraries, their kernels and their variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from cuda.bindings import driver

from kaas.code import providers
from kaas.code.choice import chosen
from kaas.errors import CannotFence, CorruptImage, KaasError, Unprovided, UnsupportedCode
from kaas.executor.device.driver_errors import call, check
from kaas.ktask.images import PROVIDED
from kaas.ktask.library import Image, Library
from softgpu import compiling

_NO_PTX = (
    "; the library has machine code alone. PTX beside it runs on newer GPUs and on the software GPU: "
    'from_cuda(source, arch="sm_80+ptx") makes both'
)
_OWN = (Unprovided, CannotFence)
"""Errors whose fields are about one image: that of the first stands for all."""


def load(
    library: Library,
    load_image: Callable[[Image], LoadedLibrary],
    code_of: Callable[[Image], Sequence[Image]] = providers.code,
) -> LoadedLibrary:
    """Load the first of the library's images that a device can run.

    An image of which the device refuses some kernels is loaded only if there is no other.

    Args:
        library: the library.
        load_image: loads one image.
        code_of: returns what to load for an image of the library.

    Raises:
        CorruptImage, UnsupportedCode: no image can run; the error is about all of them.
        CannotFence: `load_image` raises it for all images.
        NotCompiled: this process compiles nothing, and the cache lacks an image's code.
        Unprovided: no image can run, and all of them are named code that could not be provided.
    """
    refusals: list[KaasError] = []
    loaded = _loaded(library, load_image, code_of, refusals)
    found = chosen(loaded, LoadedLibrary.whole, LoadedLibrary.close)
    if found is None:
        raise _refusal(refusals, library)
    return found


def _loaded(
    library: Library,
    load_image: Callable[[Image], LoadedLibrary],
    code_of: Callable[[Image], Sequence[Image]],
    refusals: list[KaasError],
) -> Iterator[LoadedLibrary]:
    """Yield the library's images that load, and note why others do not.

    A process that compiles nothing compiles what a provider gives all the same: no compiler may have had it ahead.
    """
    for image in library.images:
        try:
            given = code_of(image)
        except (Unprovided, CorruptImage, UnsupportedCode) as error:
            refusals.append(error)
            continue
        for code in given:
            try:
                with compiling.allowed() if image.kind == PROVIDED else nullcontext():
                    loaded = load_image(code)
            except (CorruptImage, UnsupportedCode, CannotFence) as error:
                refusals.append(error)
            else:
                loaded.only = len(library.images) == len(given) == 1
                yield loaded


def load_image(image: Image, device: Any, name: str) -> LoadedLibrary:
    """Load an image as it is. device: the driver's handle. name: of the device, for errors.

    Raises:
        CorruptImage, UnsupportedCode: it cannot run there.
    """
    return LoadedLibrary(opened(image, name), device, image)


def opened(image: Image, name: str) -> Any:
    """Return the driver's handle of an image that it has loaded; see `load_image`."""
    code = image.data + b"\0" if image.kind == "ptx" else image.data
    handle = call(driver.cuLibraryLoadData, code, [], [], 0, [], [], 0, device=name)
    try:  # NVIDIA's driver loads lazily: machine code for other devices is refused only here
        call(driver.cuLibraryGetModule, handle, device=name)
    except BaseException:
        call(driver.cuLibraryUnload, handle)
        raise
    return handle


def _refusal(refusals: Sequence[KaasError], library: Library) -> KaasError:
    """Return one error for all images. It is CorruptImage or one of _OWN only if every image has that error."""
    first = refusals[0]
    if isinstance(first, _OWN) and all(isinstance(error, type(first)) for error in refusals):
        first.library = library.hash
        return first
    words = "; ".join(error.message for error in refusals)
    if all(isinstance(error, CorruptImage) for error in refusals):
        return CorruptImage(words, library=library.hash)
    if all(image.kind == "cubin" for image in library.images):
        words += _NO_PTX
    instructions = tuple(line for error in refusals for line in error.fields.get("instructions", ()))
    return UnsupportedCode(words, library=library.hash, instructions=instructions)


class VariablesPlace(NamedTuple):
    """The memory of all variables of a library. initial_bytes: of first values, before those that begin as zeros."""

    address: int
    initial_bytes: int
    nbytes: int


class LoadedLibrary:
    """A loaded code image.

    Fields:
        image: that of the library, or of the code that is provided for it. only: the library has no other.
        variables: their place; None: where the driver has put each.
    """

    only = False

    def __init__(self, handle: Any, device: Any, image: Image) -> None:
        self.image = image
        self.variables: VariablesPlace | None = None
        self._handle = handle
        self._device = device

    def kernel(self, symbol: str) -> LoadedKernel | None:
        """Return a kernel by its symbol; None if there is none.

        Raises:
            UnsupportedCode: the software GPU cannot run some of its instructions.
        """
        status, handle = driver.cuLibraryGetKernel(self._handle, symbol.encode())
        if int(status) == driver.CUresult.CUDA_ERROR_NOT_FOUND:
            return None
        check("cuLibraryGetKernel", status)
        return LoadedKernel(handle, self._device)

    def whole(self) -> bool:
        """Return True if the device can run every kernel of the image, or the library has no other."""
        try:
            return self.only or all(self.kernel(symbol) is not None for symbol in self.symbols())
        except UnsupportedCode:
            return False

    def symbols(self) -> list[str]:
        """Return the names of all kernels."""
        count = call(driver.cuLibraryGetKernelCount, self._handle)
        kernels = call(driver.cuLibraryEnumerateKernels, count, self._handle) if count else []
        return [call(driver.cuKernelGetName, kernel).decode() for kernel in kernels]

    def variable(self, name: str, *, managed: bool = False) -> tuple[int, int] | None:
        """Return address and bytes of a variable in global memory; None if the driver knows no such name.

        A `managed` variable was declared `__managed__`: host and device share it.
        """
        lookups = (driver.cuLibraryGetManaged, driver.cuLibraryGetGlobal) if managed else (driver.cuLibraryGetGlobal,)
        for lookup in lookups:
            status, address, nbytes = lookup(self._handle, name.encode())
            if int(status) != driver.CUresult.CUDA_ERROR_NOT_FOUND:
                check(lookup.__name__, status)
                return int(address), int(nbytes)
        return None

    def close(self) -> None:
        """Unload the image."""
        call(driver.cuLibraryUnload, self._handle)


class LoadedKernel:
    """A kernel as a graph can launch it.

    Fields:
        kernel: in every context of the device. handle: in its primary context.
        params: (offset, bytes) of each parameter in the parameter space.
        max_threads: of a block of this kernel. static_shared_bytes: shared memory that the code declares.
        local_bytes: local memory of a thread.
    """

    def __init__(self, kernel: Any, device: Any) -> None:
        self.kernel = kernel
        self._device = device
        self._dynamic_shared_bytes = 0
        self.handle = call(driver.cuKernelGetFunction, kernel)
        self.params = tuple(self._read_params())
        a = driver.CUfunction_attribute
        self.max_threads = self._attribute(a.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        self.static_shared_bytes = self._attribute(a.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        self.local_bytes = self._attribute(a.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)

    def allow_dynamic_shared(self, nbytes: int) -> None:
        """Allow launches at least this many bytes of dynamic shared memory in each block."""
        if nbytes <= self._dynamic_shared_bytes:
            return
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(driver.cuKernelSetAttribute, attribute, nbytes, self.kernel, self._device)
        self._dynamic_shared_bytes = nbytes

    def _attribute(self, attribute: Any) -> int:
        return int(call(driver.cuKernelGetAttribute, attribute, self.kernel, self._device))

    def _read_params(self) -> Iterator[tuple[int, int]]:
        index = 0
        while True:
            status, offset, nbytes = driver.cuKernelGetParamInfo(self.kernel, index)
            if int(status) == driver.CUresult.CUDA_ERROR_INVALID_VALUE:
                return  # one past the last parameter: the driver has no call for their number
            check("cuKernelGetParamInfo", status)
            yield int(offset), int(nbytes)
            index += 1
