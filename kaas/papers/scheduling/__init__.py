"""The workloads of the scheduling papers in virtual time, and the published figures beside ours."""
