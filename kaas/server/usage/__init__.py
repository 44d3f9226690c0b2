"""What each client used, and its quotas. Runs in the server's process."""
