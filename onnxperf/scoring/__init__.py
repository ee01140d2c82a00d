"""Measurements of a user's own beside their predictions: one model in detail, or the files of a folder."""
