"""The processes of executors and of eTask workers: their work, how they are started, and how they are confined."""
