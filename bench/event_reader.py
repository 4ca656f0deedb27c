# SPDX-License-Identifier: Apache-2.0
"""HTTP answers with server-sent events, read from bytes as they come."""


class BadAnswer(Exception):
    """The bytes are no HTTP answer."""


class EventReader:
    """The server-sent events of one HTTP/1.1 answer, from bytes that come in pieces of any size."""

    def __init__(self):
        self.status = 0
        self.headers = {}
        self.events = []  # (time, data); data is bytes
        self.body = b""  # the body of an answer that is no event stream
        self.is_complete = False
        self._buffer = b""
        self._line = b""  # the incomplete line of the event stream
        self._data = []  # lines of the event so far
        self._take = self._take_head
        self._left = 0  # bytes left of the chunk, or of the body

    def feed(self, data, at):
        self._buffer += data
        while self._take(at):
            pass

    def end(self, at):
        """The server has closed the connection."""
        if self._take == self._take_all:
            self.is_complete = True
        self._take(at)

    def _cut_line(self):
        line, found, rest = self._buffer.partition(b"\r\n")
        if not found:
            return None
        self._buffer = rest
        return line

    def _take_head(self, _):
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return False
        first, *lines = head.split(b"\r\n")
        words = first.split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise BadAnswer(f"no status line: {first[:80]!r}")
        self._buffer = rest
        if words[1] == b"100":
            return True
        self.status = int(words[1])
        for line in lines:
            name, _, value = line.partition(b":")
            self.headers[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            self._take = self._take_chunk_size
        elif "content-length" in self.headers:
            self._left = int(self.headers["content-length"])
            self._take = self._take_counted
        else:
            self._take = self._take_all
        return True

    def _take_chunk_size(self, _):
        line = self._cut_line()
        if line is None:
            return False
        try:
            self._left = int(line.partition(b";")[0], 16)
        except ValueError:
            raise BadAnswer(f"no chunk size: {line[:80]!r}") from None
        self._take = self._take_chunk if self._left else self._take_trailer
        return True

    def _take_chunk(self, at):
        piece, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
        self._left -= len(piece)
        self._content(piece, at)
        if self._left:
            return False
        self._take = self._take_chunk_end
        return True

    def _take_chunk_end(self, _):
        line = self._cut_line()
        if line is None:
            return False
        if line:
            raise BadAnswer(f"a chunk is longer than its size: {line[:80]!r}")
        self._take = self._take_chunk_size
        return True

    def _take_trailer(self, _):
        line = self._cut_line()
        if line is None:
            return False
        if not line:
            self._finish()
        return True

    def _take_counted(self, at):
        piece, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
        self._left -= len(piece)
        self._content(piece, at)
        if self._left == 0:
            self._finish()
        return False

    def _take_all(self, at):
        piece, self._buffer = self._buffer, b""
        self._content(piece, at)
        return False

    def _take_nothing(self, _):
        return False

    def _finish(self):
        self.is_complete = True
        self._take = self._take_nothing

    def _content(self, piece, at):
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            self.body += piece
            return
        *lines, self._line = (self._line + piece).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                self.events.append((at, b"\n".join(self._data)))
                self._data = []
