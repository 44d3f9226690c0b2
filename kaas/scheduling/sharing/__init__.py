"""Shares of devices: how many instances a function needs, and where they go. Runs in the pool and in the simulator.

An instance is a grant of a device and a share to a function. `load` predicts the load, `scaling` chooses instances from
a profile, `rectangles` and `packing` find them a place, and `scaler` joins these. `tokens` lets the shares of a device
take turns. All of it is pure: values in, values out. The algorithms are those of FaST-GShare (ICPP 2023), mended where
they are wrong.
"""
