"""The version, which pyproject.toml reads as well."""

VERSION = "0.1.0"
