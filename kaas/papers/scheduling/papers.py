"""The scheduling papers by name."""

from __future__ import annotations

from kaas.papers.scheduling.fast import FAST
from kaas.papers.scheduling.hybrid import HYBRID
from kaas.papers.scheduling.lalb import LALB
from kaas.papers.scheduling.mqfq import MQFQ
from kaas.papers.scheduling.paper import SchedulingPaper

SCHEDULING_PAPERS: dict[str, SchedulingPaper] = {paper.name: paper for paper in (LALB, MQFQ, HYBRID, FAST)}
