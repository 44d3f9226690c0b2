"""LLVM IR of a kernel, one family of instructions after the other."""
