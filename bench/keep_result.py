"""Writes the results of benchmarks as JSON for bench/results."""

import json


def keep(result, path):
    """Writes the result as JSON; without a path it does nothing."""
    if path:
        with open(path, "w") as file:
            json.dump(result, file, indent=2)
            file.write("\n")
