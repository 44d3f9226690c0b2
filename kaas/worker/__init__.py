"""What runs in the process of an executor or of an eTask worker, and how that process is started and confined."""
