"""Workloads of scenarios as streams of requests: a published trace, a pool's record, or drawn. Reads their files."""
