# SPDX-License-Identifier: Apache-2.0
"""A server that answers like OpenAI's API, with tokens that cost only time, for tests of clients."""

import asyncio
import contextlib
import json
import threading


class FakeServer:
    """Answers in a thread of its own as long as the `with` block lasts. Stores the bodies of requests in `asked`."""

    def __init__(self, token_s=0.001, first_s=0.0, piece_bytes=0, keeps_open=False, refuse_after=None, cut_after=None, tokenizes=True):
        self.token_s, self.first_s = token_s, first_s
        self.piece_bytes = piece_bytes  # answers go out in pieces of this size; 0: event by event
        self.keeps_open = keeps_open  # keeps connections open that it was asked to close
        self.refuse_after = refuse_after  # requests beyond this many get 429
        self.cut_after = cut_after  # streams break off without an end after this many tokens
        self.tokenizes = tokenizes
        self.asked = []
        self.port = 0

    def __enter__(self):
        ready = threading.Event()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self.thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.stopping.set)
        self.thread.join(10)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def _run(self, ready):
        async def serve():
            self.stopping = asyncio.Event()
            server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await self.stopping.wait()
            server.close()
            answering = asyncio.all_tasks() - {asyncio.current_task()}
            for task in answering:
                task.cancel()
            await asyncio.gather(*answering, return_exceptions=True)

        self.loop.run_until_complete(serve())
        self.loop.close()

    async def _answer(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split(" ", 2)
            length = next((int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
            body = json.loads(await reader.readexactly(length) or b"null")
            await self._route(method, path, body, writer)
            if self.keeps_open:
                await self.stopping.wait()
        with contextlib.suppress(ConnectionError):
            writer.close()

    async def _route(self, method, path, body, writer):
        if (method, path) == ("GET", "/v1/models"):
            return await self._json(writer, 200, {"object": "list", "data": [{"id": "fake", "object": "model"}]})
        if path == "/tokenize" and self.tokenizes:
            return await self._json(writer, 200, {"tokens": [len(word) for word in body["content"].split()]})
        if path not in ("/v1/completions", "/v1/chat/completions"):
            return await self._json(writer, 404, {"error": {"message": "no such path"}})
        self.asked.append(body)
        if self.refuse_after is not None and len(self.asked) > self.refuse_after:
            return await self._json(writer, 429, {"error": {"message": "too many"}})
        return await self._stream(writer, path, body)

    async def _json(self, writer, status, answer):
        content = json.dumps(answer).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(content)) + content)
        await writer.drain()

    async def _stream(self, writer, path, body):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        chat = path.endswith("/chat/completions")
        await asyncio.sleep(self.first_s)
        for number in range(body["max_tokens"]):
            if number == self.cut_after:
                return
            text = f" {number}é"
            choice = {"index": 0, "finish_reason": None} | ({"delta": {"content": text}} if chat else {"text": text})
            await self._event(writer, json.dumps({"choices": [choice]}, ensure_ascii=False))
            await asyncio.sleep(self.token_s)
        prompt = len(body["prompt"]) if isinstance(body.get("prompt"), list) else 7
        await self._event(writer, json.dumps({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}}))
        await self._event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _event(self, writer, data):
        event = b"data: " + data.encode() + b"\n\n"
        chunk = b"%x\r\n" % len(event) + event + b"\r\n"
        size = self.piece_bytes or len(chunk)
        for at in range(0, len(chunk), size):
            writer.write(chunk[at : at + size])
            await writer.drain()
            if self.piece_bytes:
                await asyncio.sleep(0)
