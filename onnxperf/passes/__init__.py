"""Changes to a graph before a runtime optimises it: each module takes a graph and gives another."""
