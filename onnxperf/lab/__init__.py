"""What makes and scores the constants that ship: datasets, derive, validate, baselines. No prediction imports it."""
