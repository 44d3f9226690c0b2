"""The process for the steps of a server that take long or handle unchecked bytes, and the calls to it."""
