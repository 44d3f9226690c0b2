"""The analysis of a kernel before code is made: control flow, waiting lanes, how values differ between lanes."""
