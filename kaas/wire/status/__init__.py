"""A pool's reports of itself: status, statistics, their encoding and their tables. Used by every process."""
