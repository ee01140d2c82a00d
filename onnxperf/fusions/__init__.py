"""What runtimes fuse: rules as patterns, the engine that applies them, and where operators are placed."""
