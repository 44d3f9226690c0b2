"""Puts built kernels into a wheel, which then needs no nvcc where it is installed."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface[Any]):
    """Packs the kernels that $KAAS_BLAS_PACK names: "core" or names of kernels, which are built if need be.

    Without $KAAS_BLAS_PACK the wheel is for any machine and builds kernels at their first use, as an editable
    installation does.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the kernels to the wheel, and give the wheel the platform's tag."""
        wanted = os.environ.get("KAAS_BLAS_PACK", "").split()
        if self.target_name != "wheel" or version == "editable" or not wanted:
            return
        sys.path.insert(0, self.root)
        from cutlass_blas import building, store

        jobs = building.jobs(() if wanted == ["core"] else wanted)
        building.build(jobs, at_once=len(os.sched_getaffinity(0)))
        inside = store.PACKED.relative_to(Path(self.root).resolve())
        for job in jobs:
            build_data["force_include"][str(store.find(job.file))] = str(inside / job.file)  # packed here, or cached
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        # the adapter is code for this host's architecture that Python does not import: any Python 3 can use it
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
