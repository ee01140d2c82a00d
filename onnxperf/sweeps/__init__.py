"""Sweeps: models on a grid of cards, precisions, batches and open dimensions, streamed to a table."""
