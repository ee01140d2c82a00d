"""What a runtime is, and the kernels of a graph as it runs: one row for each device activity."""
