# SPDX-License-Identifier: Apache-2.0
"""engine_sweep as a child process: a line of JSON is asked, a line of JSON is the answer. Where something fails, it is said with the command."""

import contextlib
import json
import shlex
import subprocess


class EngineProcess:
    """Started when it is asked, and anew only where other words are wanted: it has loaded its model then. Use as a block."""

    def __init__(self, program):
        self.program = str(program)
        self.command = self.process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def measure(self, words, cell):
        """What engine_sweep, started with `words`, says of a cell in its own."""
        self._start([self.program, *map(str, words)])
        try:
            self.process.stdin.write(json.dumps(cell) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has said why
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"ended with {self.process.wait()}: {shlex.join(self.command)}")
        return json.loads(line)

    def _start(self, command):
        if command == self.command:
            return
        self.stop()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.command = command

    def stop(self):
        if self.process:
            with contextlib.suppress(BrokenPipeError):  # it has ended by itself
                self.process.stdin.close()
            self.process.wait()
        self.command = self.process = None
