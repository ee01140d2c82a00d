"""The datasets, a module each: what its files hold, and what their rows are."""
