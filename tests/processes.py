"""Which process of pytest-xdist runs which tests, and what becomes of those whose process ends."""

from __future__ import annotations

from functools import cache

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

COMPILERS = "tests/compilers/"


class FilesInProcesses(LoadFileScheduling):
    """A file stays in one process. All files that start Ray stay in the same one, and so do those that compile models.

    So at most one Ray runs at a time, as without `-n`, and its start is paid for once; so is the time in which TVM
    reads the modules in its scripting languages.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        if self._starts_ray(file):
            return "ray"
        return COMPILERS if file.startswith(COMPILERS) else file

    @cache  # noqa: B019 - there is one of this class
    def _starts_ray(self, file: str) -> bool:
        return "mark.ray" in (self.config.rootpath / file).read_text()

    def remove_node(self, node: WorkerController) -> str | None:
        """The test in which a process ended has failed; another process takes those after it.

        pytest-xdist's own would run that test again, in one process after the other, and then give up all others.
        """
        units = self.assigned_work[node].values()
        running = next(((unit, test) for unit in units for test, done in unit.items() if not done), None)
        if running is None:
            super().remove_node(node)
            return None
        unit, test = running
        unit[test] = True
        super().remove_node(node)
        return str(test)
