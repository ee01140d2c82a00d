"""The version. pyproject.toml reads it here; tests/test_release.py checks every page that names it."""

VERSION = "0.2.0"
