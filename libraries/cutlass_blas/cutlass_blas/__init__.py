"""The built-in BLAS library of KaaS, on CUTLASS."""
