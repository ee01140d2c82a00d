"""One question on its way from a file to a timeline: the scenario, the run and its stages, memory, microbatches."""
