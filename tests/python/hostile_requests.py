# SPDX-License-Identifier: Apache-2.0
"""Hostile requests, which a server may refuse but must survive; they are the same ones in every run."""

import json
import random

from serve_checks import CHAT, COMPLETIONS, NAME

# Numbers as JSON spells them, and some as it does not.
LITERALS = [
    "0", "-0", "0.0", "1", "-1", "2", "0.5", "-0.5", "100", "128", "129", "1.0", "1e0", "1E+2", "1e-320", "5e-324", "1e308", "-1e308", "1e309",
    "1e999", "-1e999", "127", "255", "256", "32767", "65535", "65536", "2147483647", "2147483648", "-2147483648", "-2147483649", "4294967295",
    "4294967296", "9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "18446744073709551615", "18446744073709551616", "1" * 400, "-" + "9" * 400, "0." + "0" * 400 + "1", "1e" + "9" * 50,
    "NaN", "Infinity", "-Infinity", "nan", "01", "+1", ".5", "1.", "0x10", "1_000", "--1", "1e", "1,0",
]  # fmt: skip
WRONG_TYPES = [
    "null", "true", "false", '""', '"1"', '"x"', "[]", "[1]", '["x"]', "[null]", "[[]]", "[[[1]]]", "{}", '{"a": 1}', '{"": {}}', "[{}]",
    "[true, 1.5]",
]  # fmt: skip
NUMBERS = [
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "n", "best_of", "max_tokens",
    "max_completion_tokens", "logprobs", "top_logprobs", "priority", "min_tokens", "repeat_penalty", "repeat_last_n",
]  # fmt: skip
OTHERS = [
    "model", "prompt", "messages", "stop", "stream", "stream_options", "logit_bias", "echo", "suffix", "user", "ignore_eos", "tools", "tool_choice",
    "chat_template_kwargs", "response_format", "metadata", "store", "parallel_tool_calls", "modalities", "functions", "function_call", "audio",
    "prediction", "service_tier", "reasoning_effort", "unknown", "stop_token_ids", "documents", "add_generation_prompt", "add_special_tokens",
]  # fmt: skip
RICH = {
    COMPLETIONS: {
        "model": NAME, "prompt": "The river", "max_tokens": 4, "temperature": 0.7, "seed": 5, "stop": ["a", "b"], "logit_bias": {"65": 1.5},
        "logprobs": 2, "n": 2, "echo": True, "top_p": 0.9, "presence_penalty": 0.5, "user": "me",
    },
    CHAT: {
        "model": NAME, "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hé"}]}],
        "max_completion_tokens": 4, "temperature": 0.7, "logprobs": True, "top_logprobs": 2, "n": 2, "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}],
    },
}  # fmt: skip
PLAIN = {
    COMPLETIONS: {"model": NAME, "prompt": "The river", "max_tokens": 2, "temperature": 0},
    CHAT: {"model": NAME, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "temperature": 0},
}


def with_literal(body, field, literal):
    """The body with a field whose value is this text, be it JSON or not."""
    rest = {name: value for name, value in body.items() if name != field}
    return json.dumps(rest).removesuffix("}").encode() + f', "{field}": {literal}}}'.encode()


def extremes():
    """(path, body): each numeric field with each literal, each field with each wrong type."""
    for path, body in PLAIN.items():
        for field in NUMBERS:
            for literal in LITERALS:
                yield path, with_literal(body, field, literal)
        for field in NUMBERS + OTHERS:
            for literal in WRONG_TYPES:
                yield path, with_literal(body, field, literal)
    for literal in LITERALS:
        yield COMPLETIONS, with_literal(PLAIN[COMPLETIONS], "prompt", f"[{literal}]")
        yield COMPLETIONS, with_literal(PLAIN[COMPLETIONS], "prompt", f"[[65], [{literal}]]")
        yield COMPLETIONS, with_literal(PLAIN[COMPLETIONS], "logit_bias", f'{{"65": {literal}}}')
        yield COMPLETIONS, with_literal(PLAIN[COMPLETIONS], "logit_bias", f'{{"{literal}": 1}}')
        yield COMPLETIONS, with_literal(PLAIN[COMPLETIONS] | {"echo": True, "logprobs": 1}, "max_tokens", literal)
        yield "/detokenize", f'{{"tokens": [{literal}]}}'.encode()
        yield "/detokenize", f'{{"tokens": {literal}}}'.encode()
        yield "/tokenize", f'{{"content": {literal}}}'.encode()
        yield "/tokenize", f'{{"content": "x", "add_special": {literal}}}'.encode()
    for literal in WRONG_TYPES:
        for role in ("system", "user", "assistant", "tool"):
            yield CHAT, with_literal(PLAIN[CHAT], "messages", f'[{{"role": "{role}", "content": {literal}}}]')
        yield CHAT, with_literal(PLAIN[CHAT], "messages", f'[{{"role": {literal}, "content": "x"}}]')
        yield CHAT, with_literal(PLAIN[CHAT], "messages", f'[{{"role": "user", "content": [{literal}]}}]')
        yield CHAT, with_literal(PLAIN[CHAT], "messages", f'[{{"role": "assistant", "content": "x", "tool_calls": {literal}}}]')
        yield CHAT, with_literal(PLAIN[CHAT], "tools", f'[{{"type": "function", "function": {literal}}}]')
        yield COMPLETIONS, with_literal(PLAIN[COMPLETIONS], "stream_options", f'{{"include_usage": {literal}}}')
        yield "/detokenize", f'{{"tokens": {literal}}}'.encode()
        yield "/tokenize", f'{{"content": {literal}}}'.encode()


def structures():
    """(path, body): JSON of extreme depth, length and spelling."""
    deep = 100_000
    for path, body in PLAIN.items():
        for opened, closed in (("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")):
            for depth in (60, 65, 1000, deep):
                nested = opened * depth + "1" + closed * depth
                yield path, nested.encode()
                yield path, (opened * depth).encode()
                for field in ("prompt", "messages", "stop", "metadata", "tools", "chat_template_kwargs", "unknown", "logit_bias"):
                    yield path, with_literal(body, field, nested)
        for field in ("model", "user", "stop", "unknown", "prompt"):
            for value in ("x" * 1_000_000, "\x00" * 1000, "\u2028" * 1000, "🎉" * 1000, "\\" * 1000, "%n%s" * 100):
                yield path, json.dumps(body | {field: value}).encode()
            for raw in (b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\x00", b"\n", b"\t", b"\x1b[2J"):
                yield path, with_literal(body, field, "@").replace(b"@", b'"' + raw + b'"')
            for escape in ("\\ud800", "\\udc00", "\\ud800\\ud800", "\\u0000", "\\x41", "\\u12", "\\", "\\uZZZZ", "\\ud83c\\udf89"):
                yield path, with_literal(body, field, f'"{escape}"')
        many = {f"f{n}": n for n in range(20_000)}
        yield path, json.dumps(body | many).encode()
        yield path, json.dumps(body | {"metadata": many}).encode()
        yield path, json.dumps(body | {"stop": ["x"] * 100_000}).encode()
        yield path, json.dumps(body | {"stop_token_ids": [5] * 100_000}).encode()
        yield path, json.dumps(body | {"logit_bias": [[5, 1]] * 100_000}).encode()
        yield path, json.dumps(body | {"logit_bias": {str(n): 1 for n in range(100_000)}}).encode()
        yield path, json.dumps(body | {"tools": [{"type": "function", "function": {"name": "f"}}] * 5000}).encode()
        yield path, json.dumps(body)[:-1].encode() + b', "max_tokens": 1, "max_tokens": -1}'
        yield path, b"[" + b"0," * 500_000 + b"0]"
        yield path, b"\xef\xbb\xbf" + json.dumps(body).encode()
        for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-7"):
            yield path, json.dumps(body).encode(encoding)
        yield path, json.dumps(body).encode() + b"\x00"
        yield path, json.dumps(body).encode() + b"}"
        yield path, b" " * 1_000_000 + json.dumps(body).encode()
        yield path, b'"' + b"x" * 1_000_000
    yield COMPLETIONS, json.dumps(PLAIN[COMPLETIONS] | {"prompt": ["x"] * 5000}).encode()
    yield COMPLETIONS, json.dumps(PLAIN[COMPLETIONS] | {"prompt": [[5]] * 5000}).encode()
    yield COMPLETIONS, json.dumps(PLAIN[COMPLETIONS] | {"prompt": [5] * 500_000}).encode()
    yield COMPLETIONS, json.dumps(PLAIN[COMPLETIONS] | {"prompt": "river " * 200_000}).encode()
    yield CHAT, json.dumps(PLAIN[CHAT] | {"messages": [{"role": "user", "content": "x"}] * 20_000}).encode()
    yield CHAT, json.dumps(PLAIN[CHAT] | {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 20_000}]}).encode()
    yield "/detokenize", json.dumps({"tokens": [65] * 500_000}).encode()
    yield "/tokenize", json.dumps({"content": "x" * 1_000_000}).encode()


PUT_IN = b'" { } [ ] : , \\ \xff \0 1e999 \\ud800 null - 0'.split(b" ") + [b"\r\n", b"\r\n\r\n", b" "]


def damage(data, draw):
    """Returns the data with a few bytes changed, cut, doubled or inserted."""
    data = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        kind = draw.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del data[at : at + draw.randint(1, 12)]
        elif kind == 2:
            data[at:at] = draw.choice(PUT_IN)
        elif kind == 3:
            data[at:at] = data[at : at + draw.randint(1, 40)]
        elif kind == 4 and len(data) > 2:
            other = draw.randrange(len(data))
            data[at : at + 4], data[other : other + 4] = data[other : other + 4], data[at : at + 4]
        elif draw.randrange(4) == 0:
            del data[at:]
    return bytes(data)


def damaged_bodies(count, seed):
    """(path, body): good bodies with bytes damaged."""
    draw = random.Random(seed)
    for _ in range(count):
        path = draw.choice(list(RICH))
        yield path, damage(json.dumps(RICH[path], ensure_ascii=draw.random() < 0.5).encode(), draw)


def message(path, body, extra=b""):
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n".encode()
    return head + extra + b"\r\n" + body


def in_chunks(path, body, sizes):
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    out, at = b"", 0
    while at < len(body):
        for size in sizes:
            piece = body[at : at + size]
            at += size
            out += b"%x\r\n" % len(piece) + piece + b"\r\n" if piece else b""
    return head + out + b"0\r\n\r\n"


def wrong_http():
    """Invalid HTTP: wrong lengths, requests smuggled in others, endless headers."""
    body = json.dumps(PLAIN[COMPLETIONS]).encode()

    def post(*headers, content=body, first=f"POST {COMPLETIONS} HTTP/1.1"):
        return "\r\n".join([first, "Host: localhost", *headers, "", ""]).encode("latin-1") + content

    smuggled = b"0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    length = f"Content-Length: {len(body)}"
    lengths = "-1 +5 5,5 0x5 5.0 1e3 five 99999999999 18446744073709551616 \"5\" \xb5".split(" ") + ["", " ", "5 5", "5\t6", "9" * 500]
    for value in lengths:
        yield post(f"Content-Length: {value}")
    for second in (length, "Content-Length: 0", "Content-Length: 5", "Transfer-Encoding: chunked", "transfer-encoding: CHUNKED"):
        yield post(length, second)
        yield post(second, length, content=smuggled)
    codings = ["gzip", "gzip, chunked", "chunked, gzip", "chunked, chunked", "identity", "xchunked", "chunked;q=1", '"chunked"', ""]
    codings += ["\x0bchunked", "chunked\x0c"]
    for coding in codings:
        yield post(f"Transfer-Encoding: {coding}", content=smuggled)
        yield post(f"Transfer-Encoding: {coding}", "Transfer-Encoding: chunked", content=smuggled)
        yield post(f"Transfer-Encoding : {coding}", content=smuggled)
        yield post("X: y\r\n Transfer-Encoding: chunked", f"Transfer-Encoding:\r\n {coding}", content=smuggled)
    sizes = ["-1", "+1", "0x1", " 1", "1 ", "", "g", "1\n", "1\r", "1" * 100, "1;" + "x" * 10_000]
    sizes += ["ffffffffffffffff", "10000000000000001", "7fffffffffffffff"]
    for size in sizes:
        yield post("Transfer-Encoding: chunked", content=f"{size}\r\nx\r\n0\r\n\r\n".encode())
        yield post("Transfer-Encoding: chunked", content=f"1\r\nx\r\n{size}\r\nx\r\n0\r\n\r\n".encode())
    endings = [b"1\r\nxy\r\n0\r\n\r\n", b"1\r\nx\n0\r\n\r\n", b"5\r\nx\r\n0\r\n\r\n", b"0\r\nX\r\n\r\n", b"0\r\nX: y\r\n z\r\n\r\n"]
    for ending in [*endings, b"0\r\n\n", b"0\n\n", smuggled]:
        yield post("Transfer-Encoding: chunked", content=ending)
    yield in_chunks(COMPLETIONS, body, [1])
    yield in_chunks(COMPLETIONS, b" " * 65_600 + body, [1])
    yield in_chunks(COMPLETIONS, body, [3, 70_000])
    yield post("Transfer-Encoding: chunked", content=b"1\r\n \r\n" * 65_537 + b"0\r\n\r\n")
    yield post("Transfer-Encoding: chunked", content=b"0\r\n" + b"X: y\r\n" * 5000 + b"\r\n")
    yield post(*[f"X{n}: y" for n in range(5000)])
    yield post(*["X: y"] * 101)
    yield post("X: " + "y" * 100_000)
    yield post("y" * 100_000 + ": x")
    yield post("Cookie: " + "a=b; " * 4000)
    yield b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    yield b"A" * 100_000
    yield b"\r\n" * 10_000
    yield b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 2000
    headers = ["X", ": x", "X : y", "X\t: y", "X Y: z", "X[]: z", "X\x00: y", "X: \x00", "X: \x07", "X: a\rb", "X: a\nY: b", "\rX: a"]
    for header in [*headers, "X\xe9: z", "X: \x7f"]:
        yield post(length, header)
    for host in ("Host: a b", "Host: a@b", "Host: a/b", "Host: localhost", "Host: ", "Host: \x01"):
        yield post(length, host)
        yield f"GET /health HTTP/1.1\r\n{host}\r\n{host}\r\n\r\n".encode("latin-1")
    lines = (
        "GET", "GET /", "GET / ", " GET / HTTP/1.1", "GET  / HTTP/1.1", "GET /  HTTP/1.1", "GET / HTTP/1.1 ", "GET\t/\tHTTP/1.1", "GET /a b HTTP/1.1",
        "GET /#x HTTP/1.1", "GET /\xe9 HTTP/1.1", "GET /%4 HTTP/1.1", "GET /%zz HTTP/1.1", "GET /%00 HTTP/1.1", "GET /%0d%0aX:y HTTP/1.1",
        "GET x HTTP/1.1", "GET http:///x HTTP/1.1", "GET * HTTP/1.1", "G(T / HTTP/1.1", "BREW / HTTP/1.1", "get / HTTP/1.1", "CONNECT h:80 HTTP/1.1",
        "TRACE / HTTP/1.1", "PRI * HTTP/2.0", "GET / HTTP/0.9", "GET / HTTP/1.2", "GET / http/1.1", "GET / HTTP/1.10", "GET / ICAP/1.0", "GET / HTTP/9999999999.1",
        "G\x00T / HTTP/1.1", "\x00GET / HTTP/1.1", "\x16\x03\x01\x02\x00\x01\x00", "A" * 9000 + " / HTTP/1.1", "GET / HTTP/1." + "1" * 9000,
    )  # fmt: skip
    for line in lines:
        for end in ("\r\n", "\n", "\r", "\r\r\n"):
            yield f"{line}{end}Host: localhost{end}{end}".encode("latin-1")
    for expectation in ("100-continue", "a miracle", "100-continue, 100-continue", ""):
        yield post(length, f"Expect: {expectation}")
    for upgrade in ("websocket", "h2c", "TLS/1.0"):
        yield post(length, f"Upgrade: {upgrade}", "Connection: Upgrade")
    for encoding in ("gzip", "br", "deflate, gzip"):
        yield post(length, f"Content-Encoding: {encoding}")
    for cut in range(0, len(message(COMPLETIONS, body)), 3):
        yield message(COMPLETIONS, body)[:cut]
    yield message(COMPLETIONS, body)[:-5] + b"\r\n\r\n"
    yield message(COMPLETIONS, body) * 20
    yield message(COMPLETIONS, body) + b"nonsense"


def damaged_http(count, seed):
    """Good requests with bytes damaged anywhere, also in their heads."""
    draw = random.Random(seed)
    bases = [message(path, json.dumps(body).encode()) for path, body in PLAIN.items()]
    bases += [in_chunks(path, json.dumps(body).encode(), [7, 30]) for path, body in PLAIN.items()]
    bases += [b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", b"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a\r\n\r\n"]
    for _ in range(count):
        base = draw.choice(bases)
        head = base.index(b"\r\n\r\n")
        if draw.random() < 0.8:  # most of it in the head
            yield damage(base[:head], draw) + base[head:]
        else:
            yield damage(base, draw)
