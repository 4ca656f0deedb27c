# SPDX-License-Identifier: Apache-2.0
"""engine_sweep as a child process: a line of JSON is asked, a line of JSON is the answer. Where something fails, it is said with the command."""

import json
import shlex
import subprocess


class EngineProcess:
    """Loads its model once. Use as a block."""

    def __init__(self, program, words):
        self.command = [str(program), *map(str, words)]
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def measure(self, cell):
        """What engine_sweep says of a cell in its words."""
        try:
            self.process.stdin.write(json.dumps(cell) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has said why
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"ended with {self.process.wait()}: {shlex.join(self.command)}")
        return json.loads(line)

    def stop(self):
        self.process.stdin.close()
        self.process.wait()
