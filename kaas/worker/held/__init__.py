"""Constants of functions in device memory that several processes map: the holder of a device, and eTasks that read."""
