"""The request, as values: kernels with their buffers, libraries, and encodings. Used by every process."""
