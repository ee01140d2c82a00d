"""`python -m onnxperf`."""

from onnxperf.cli import main

if __name__ == "__main__":
    main()
