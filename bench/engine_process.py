# SPDX-License-Identifier: Apache-2.0
"""Runs engine_sweep as a child process: a request and its answer are a line of JSON each. Errors name the command."""

import contextlib
import json
import shlex
import subprocess


class EngineProcess:
    """Starts engine_sweep at the first measurement, and again only for other arguments, so that its model stays loaded. Use with `with`."""

    def __init__(self, program):
        self.program = str(program)
        self.command = self.process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def measure(self, words, cell):
        """Returns the answer of an engine_sweep started with `words` to a cell in its format."""
        self._start([self.program, *map(str, words)])
        try:
            self.process.stdin.write(json.dumps(cell) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has printed the reason
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
