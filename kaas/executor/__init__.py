"""The executor: one device, its memory and its plans. Everything here runs without Ray."""
