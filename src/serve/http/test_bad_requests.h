// SPDX-License-Identifier: Apache-2.0
// Requests that a server must refuse, for tests; above all those that smuggle one request inside
// another.
#pragma once

#include <string>
#include <vector>

namespace spillway {

struct BadRequest {
  const char* why;
  std::string text;
  int status;
};

inline std::vector<BadRequest> bad_requests() {
  using namespace std::string_literals;
  const auto line = [](std::string first) { return first + "\r\nHost: h\r\n\r\n"; };
  const auto with = [](std::string headers) {
    return "POST / HTTP/1.1\r\nHost: h\r\n" + headers + "\r\nabcde";
  };
  const auto chunked = [](std::string body) {
    return "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + body;
  };
  return {
      {"only line feeds", "GET / HTTP/1.1\nHost: h\n\n", 400},
      {"a line feed after the request line", "GET / HTTP/1.1\nHost: h\r\n\r\n", 400},
      {"a line feed between headers", "GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n", 400},
      {"a line feed at the end", "GET / HTTP/1.1\r\nHost: h\r\n\n", 400},
      {"a lone carriage return in a header", with("X: a\rb\r\nContent-Length: 5\r\n"), 400},
      {"a header behind a carriage return", with("X: a\rTransfer-Encoding: chunked\r\n"), 400},
      {"a carriage return at a line's begin", with("\rX: a\r\n"), 400},
      {"two carriage returns", "GET / HTTP/1.1\r\r\nHost: h\r\n\r\n", 400},
      {"two blank lines first", "\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"NUL in the method", line("G\0T / HTTP/1.1"s), 400},
      {"NUL in the target", line("GET /\0 HTTP/1.1"s), 400},
      {"NUL in a header's name", with("X\0: y\r\n"s), 400},
      {"NUL in a header's value", with("X: \0\r\n"s), 400},
      {"NUL in Content-Length", with("Content-Length: 5\0\r\n"s), 400},
      {"NUL before the request", "\0GET / HTTP/1.1\r\nHost: h\r\n\r\n"s, 400},
      {"a bell in a value", with("X: \a\r\n"), 400},
      {"a delete in a value", with("X: \x7f\r\n"), 400},
      {"a vertical tab before chunked", with("Transfer-Encoding: \vchunked\r\n"), 400},
      {"a form feed after chunked", with("Transfer-Encoding: chunked\f\r\n"), 400},
      {"the beginning of TLS", "\x16\x03\x01\x02\x00\x01\x00"s, 400},
      {"no target", line("GET HTTP/1.1"), 400},
      {"no version", line("GET /"), 400},
      {"nothing but a method", line("GET"), 400},
      {"a space first", line(" GET / HTTP/1.1"), 400},
      {"two spaces before the target", line("GET  / HTTP/1.1"), 400},
      {"two spaces after the target", line("GET /  HTTP/1.1"), 400},
      {"a space at the end", line("GET / HTTP/1.1 "), 400},
      {"a tab for a space", line("GET\t/\tHTTP/1.1"), 400},
      {"a space in the target", line("GET /a b HTTP/1.1"), 400},
      {"a fragment", line("GET /#x HTTP/1.1"), 400},
      {"bytes above ASCII in the target", line("GET /\xc3\xa9 HTTP/1.1"), 400},
      {"half an escape", line("GET /%4 HTTP/1.1"), 400},
      {"no escape", line("GET /%zz HTTP/1.1"), 400},
      {"an escaped NUL", line("GET /%00 HTTP/1.1"), 400},
      {"an escaped line end", line("GET /%0d%0aX:y HTTP/1.1"), 400},
      {"a relative target", line("GET index.html HTTP/1.1"), 400},
      {"an absolute target without a host", line("GET http:///x HTTP/1.1"), 400},
      {"a star for GET", line("GET * HTTP/1.1"), 400},
      {"a method that is no word", line("G(T / HTTP/1.1"), 400},
      {"an unknown method", line("BREW / HTTP/1.1"), 501},
      {"a method in lower case", line("get / HTTP/1.1"), 501},
      {"CONNECT", line("CONNECT h:80 HTTP/1.1"), 501},
      {"TRACE", line("TRACE / HTTP/1.1"), 501},
      {"HTTP/2 with knowledge", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"HTTP/0.9", line("GET / HTTP/0.9"), 505},
      {"HTTP/1.2", line("GET / HTTP/1.2"), 505},
      {"a version in lower case", line("GET / http/1.1"), 400},
      {"a version with more digits", line("GET / HTTP/1.10"), 400},
      {"another protocol", line("GET / ICAP/1.0"), 400},
      {"no Host", "GET / HTTP/1.1\r\nX: y\r\n\r\n", 400},
      {"two Hosts", with("Host: h\r\n"), 400},
      {"a Host that is none", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
      {"a Host with a user", "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400},
      {"a Host with a path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
      {"a header without a colon", with("Nonsense\r\n"), 400},
      {"a header without a name", with(": x\r\n"), 400},
      {"a space before the colon", with("Content-Length : 5\r\n"), 400},
      {"a tab before the colon", with("Transfer-Encoding\t: chunked\r\n"), 400},
      {"a space in a name", with("X Y: z\r\n"), 400},
      {"a name in brackets", with("X[]: z\r\n"), 400},
      {"a name above ASCII", with("X\xc3\xa9: z\r\n"), 400},
      {"a folded header", with("X: a\r\n b\r\n"), 400},
      {"a folded Transfer-Encoding", with("Transfer-Encoding:\r\n chunked\r\n"), 400},
      {"a header folded with a tab", with("X: a\r\n\tb\r\n"), 400},
      {"a first header that begins with a space", "GET / HTTP/1.1\r\n Host: h\r\n\r\n", 400},
      {"length and chunks", with("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), 400},
      {"chunks and length", with("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), 400},
      {"chunks and length zero", with("Transfer-Encoding: chunked\r\nContent-Length: 0\r\n"), 400},
      {"two lengths", with("Content-Length: 5\r\nContent-Length: 6\r\n"), 400},
      {"the same length twice", with("Content-Length: 5\r\nContent-Length: 5\r\n"), 400},
      {"a list of lengths", with("Content-Length: 5, 5\r\n"), 400},
      {"a negative length", with("Content-Length: -5\r\n"), 400},
      {"a length with a sign", with("Content-Length: +5\r\n"), 400},
      {"a hexadecimal length", with("Content-Length: 0x5\r\n"), 400},
      {"a broken length", with("Content-Length: 5.0\r\n"), 400},
      {"a length with an exponent", with("Content-Length: 5e0\r\n"), 400},
      {"a length with a space", with("Content-Length: 5 5\r\n"), 400},
      {"an empty length", with("Content-Length:\r\n"), 400},
      {"a length in words", with("Content-Length: five\r\n"), 400},
      {"a length in quotes", with("Content-Length: \"5\"\r\n"), 400},
      {"a length in other digits", with("Content-Length: \xd9\xa5\r\n"), 400},
      {"a length that is too large", with("Content-Length: 99999999999\r\n"), 413},
      {"a length that would wrap", with("Content-Length: 18446744073709551621\r\n"), 413},
      {"an unknown coding", with("Transfer-Encoding: zipped\r\n"), 400},
      {"gzip", with("Transfer-Encoding: gzip\r\n"), 400},
      {"gzip and chunked", with("Transfer-Encoding: gzip, chunked\r\n"), 400},
      {"chunked and identity", with("Transfer-Encoding: chunked, identity\r\n"), 400},
      {"identity", with("Transfer-Encoding: identity\r\n"), 400},
      {"chunked twice", with("Transfer-Encoding: chunked, chunked\r\n"), 400},
      {"two Transfer-Encodings",
       with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400},
      {"chunked and another line", with("Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n"),
       400},
      {"chunked with a parameter", with("Transfer-Encoding: chunked;q=1\r\n"), 400},
      {"chunked in quotes", with("Transfer-Encoding: \"chunked\"\r\n"), 400},
      {"xchunked", with("Transfer-Encoding: xchunked\r\n"), 400},
      {"an empty coding", with("Transfer-Encoding:\r\n"), 400},
      {"chunked after a byte above ASCII",
       with("Transfer-Encoding: \xa0"
            "chunked\r\n"),
       400},
      {"chunks in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"another expectation", with("Expect: a miracle\r\n"), 417},
      {"no chunk size", chunked("\r\nabc\r\n"), 400},
      {"a chunk size in words", chunked("five\r\nhello\r\n"), 400},
      {"a negative chunk", chunked("-1\r\nx\r\n"), 400},
      {"a chunk size with a sign", chunked("+1\r\nx\r\n"), 400},
      {"a chunk size with 0x", chunked("0x1\r\nx\r\n"), 400},
      {"a space before a chunk size", chunked(" 1\r\nx\r\n"), 400},
      {"a space after a chunk size", chunked("1 \r\nx\r\n"), 400},
      {"an extension without a size", chunked(";x\r\n"), 400},
      {"a chunk size that would wrap", chunked("10000000000000001\r\nx\r\n"), 400},
      {"a huge chunk", chunked("7fffffffffffff\r\nx\r\n"), 413},
      {"a chunk size that ends with a line feed", chunked("1\nx\r\n0\r\n\r\n"), 400},
      {"a chunk size with a lone carriage return", chunked("1\rx\r\n0\r\n\r\n"), 400},
      {"a line feed in an extension", chunked("1;a\nb\r\nx\r\n0\r\n\r\n"), 400},
      {"NUL in an extension", chunked("1;\0\r\nx\r\n0\r\n\r\n"s), 400},
      {"a chunk that is longer than its size", chunked("1\r\nxyz\r\n0\r\n\r\n"), 400},
      {"a chunk that ends with a line feed", chunked("1\r\nx\n0\r\n\r\n"), 400},
      {"a chunk without an end", chunked("1\r\nx0\r\n\r\n"), 400},
      {"a chunk that ends with two carriage returns", chunked("1\r\nx\r\r\n0\r\n\r\n"), 400},
      {"a trailer without a colon", chunked("0\r\nnonsense\r\n\r\n"), 400},
      {"a trailer that is folded", chunked("0\r\nX: y\r\n z\r\n\r\n"), 400},
      {"a trailer that ends with a line feed", chunked("0\r\nX: y\n\r\n"), 400},
      {"a line feed behind the last chunk", chunked("0\r\n\n"), 400},
      {"NUL in a trailer", chunked("0\r\nX: \0\r\n\r\n"s), 400},
      {"a request behind the last chunk", chunked("0\r\nGET / HTTP/1.1\r\n\r\n"), 400},
  };
}

}  // namespace spillway
