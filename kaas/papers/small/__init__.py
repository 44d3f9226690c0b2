"""The experiments on software devices: modelled kernels on a scaled-down machine."""
