"""Screens: how results are drawn on a terminal, a module for each kind of result. Only the command line uses them."""
