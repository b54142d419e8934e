"""Times kernels: the plan, the loop, the devices, the files. Standard library and torch only."""
