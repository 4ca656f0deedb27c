// SPDX-License-Identifier: Apache-2.0
// Where the HTTP server listens and what it takes from strangers: every limit is here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace spillway {

struct HttpOptions {
  std::string host = "127.0.0.1";  // a name or an address; only this machine unless told otherwise
  uint16_t port = 0;               // 0: any that is free
  int io_threads = 1;

  // connection_limit.h says how many a queue needs. Beyond: accepted, answered 503 (but for probes,
  // HttpHandler::is_probe) and closed. Clients that were left in the backlog would wait without
  // knowing for what.
  size_t most_connections = 1024;
  // Of one address (of IPv6: of one /64); 0: any number. Beyond as above.
  size_t most_client_connections = 0;

  size_t most_head_bytes = 16 << 10;  // request line and headers; trailers have as much again
  size_t most_headers = 100;
  size_t most_target_bytes = 8 << 10;
  size_t most_body_bytes = 32 << 20;
  // Of all requests that come or wait to be read, but for those of 64 KiB and less.
  size_t most_bodies_bytes = 256 << 20;
  size_t most_chunks = 65'536;                  // of one request's body
  size_t most_chunk_extension_bytes = 4 << 10;  // of all chunks of a body together
  // Of requests that came before the last answer was out; what one read brings may come on top.
  size_t most_pipelined_bytes = 16 << 10;
  // Of an answer in pieces, waiting for its reader. One that is further behind is cut off. Pieces
  // that alone are larger do not count: nobody reads those at once.
  size_t most_stream_bytes = 1 << 20;
  size_t send_buffer_bytes = 256 << 10;  // the system's own, beside that; 0: as it likes

  std::chrono::milliseconds head_timeout{10'000};  // from the first byte; or to send that
  std::chrono::milliseconds body_timeout{60'000};
  std::chrono::milliseconds idle_timeout{60'000};   // between two requests
  std::chrono::milliseconds write_timeout{30'000};  // for each 64 KiB of an answer
  // After the last answer, unread bytes would make the system throw it away: what the client still
  // sends is read and dropped, until it is silent for so long, or for as long in all, or it is too
  // much. Twice the largest body, so that who sends one finds its 413.
  std::chrono::milliseconds linger_timeout{1'000};
  std::chrono::milliseconds longest_linger{30'000};
  size_t most_lingered_bytes = 64 << 20;

  // Pages of these origins ("https://chat.example") may call; "*": of all.
  std::vector<std::string> cors_origins;
};

}  // namespace spillway
