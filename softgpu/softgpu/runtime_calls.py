"""What cuda.core asks of NVIDIA's runtime library, answered by the driver.

The runtime library works with no driver but NVIDIA's: it makes sure of that by private means. cuda.core calls it for
two things that the driver does as well, `Device.sync` and `Device.pci_bus_id`, by name in a module of cuda.bindings.
"""

from __future__ import annotations


def answer_runtime_calls() -> None:
    """From now on these names stand for calls of the driver, with the errors that the driver gives."""
    from cuda.bindings import driver, runtime  # after the software driver is there to be found

    def synchronize() -> tuple[runtime.cudaError_t]:
        (status,) = driver.cuCtxSynchronize()
        return (runtime.cudaError_t(int(status)),)

    def pci_bus_id(length: int, device: int) -> tuple[runtime.cudaError_t, bytes | None]:
        status, name = driver.cuDeviceGetPCIBusId(length, device)
        return runtime.cudaError_t(int(status)), name

    runtime.cudaDeviceSynchronize = synchronize
    runtime.cudaDeviceGetPCIBusId = pci_bus_id
