"""Usage and quotas of clients. Runs in the server's process."""
