// SPDX-License-Identifier: Apache-2.0
// All options of the HTTP server: its address and every limit on what clients may send.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

struct HttpOptions {
  std::string host = "127.0.0.1";  // a name or an address; by default only this machine
  uint16_t port = 0;               // 0: any free port
  int io_threads = 1;

  // connection_limit.h computes this from the queue. Connections beyond it are accepted, answered
  // with 503 (except health checks, HttpHandler::is_probe) and closed: left in the backlog, clients
  // would wait without knowing why.
  size_t most_connections = 1024;
  // The same for one client address (for IPv6 one /64); 0: no limit.
  size_t most_client_connections = 0;

  size_t most_head_bytes = 16 << 10;  // request line and headers; trailers may have as much again
  size_t most_headers = 100;
  size_t most_target_bytes = 8 << 10;
  size_t most_body_bytes = 32 << 20;
  // Bytes of all bodies that arrive or wait to be parsed, except those of at most 64 KiB.
  size_t most_bodies_bytes = 256 << 20;
  size_t most_chunks = 65'536;                  // in one request's body
  size_t most_chunk_extension_bytes = 4 << 10;  // in all chunks of a body together
  // Bytes of pipelined requests that are kept while an answer is sent; one read may exceed this.
  size_t most_pipelined_bytes = 16 << 10;
  // Bytes of a streamed answer that may wait for the client; a client further behind is cut off. A
  // single chunk larger than this does not count, since no client could take it immediately.
  size_t most_stream_bytes = 1 << 20;
  size_t send_buffer_bytes = 256 << 10;  // the system's buffer, in addition; 0: the system's choice

  std::chrono::milliseconds head_timeout{10'000};  // from its first byte, or for that to arrive
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds idle_timeout{60'000};   // between two requests
  std::chrono::milliseconds write_timeout{30'000};  // for each 64 KiB of an answer
  // Closing with unread bytes would make the system drop the last answer. So after it, what the
  // client still sends is read and dropped, until it is silent for linger_timeout, longest_linger
  // has passed, or it is too much: twice the largest body, so that a client that sends one finds
  // its 413.
  std::chrono::milliseconds linger_timeout{1'000};
  std::chrono::milliseconds longest_linger{30'000};
  size_t most_lingered_bytes = 64 << 20;

  // Web pages of these origins ("https://chat.example") may call; "*": all pages may.
  std::vector<std::string> cors_origins;
};

}  // namespace spillway
