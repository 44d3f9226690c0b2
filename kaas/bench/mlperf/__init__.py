"""MLPerf Inference's scenarios, by a driver of our own and by MLPerf's load generator."""
