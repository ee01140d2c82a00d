"""The command `onnxperf`, also as `python -m onnxperf`."""

import sys

from onnxperf.ground.errors import INTERRUPTED


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported, or is ending already, has no traceback, too."""
    try:
        from onnxperf.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
