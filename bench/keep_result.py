"""How benchmarks keep what they measured: JSON for bench/results."""

import json


def keep(result, path):
    """Nothing without a path: people who only look need no file."""
    if path:
        with open(path, "w") as file:
            json.dump(result, file, indent=2)
            file.write("\n")
