// SPDX-License-Identifier: Apache-2.0
#include "serve/http/connection_limit.h"

#include <sys/resource.h>

#include <algorithm>

#include "base/log.h"

namespace spillway {
namespace {

constexpr size_t kBeside = 256, kLeast = 1024;
// Files of models and of KV on disk, of a GPU, and of connections that are being refused.
constexpr uint64_t kOwnFiles = 512;

}  // namespace

size_t connections_for(size_t requests) { return std::max(kLeast, requests + kBeside); }

size_t connections_of_client(size_t connections) {
  return connections - std::min(kBeside, connections / 4);
}

size_t connections_within(size_t connections, uint64_t most_files) {
  // If there are hardly any files, half of them are for connections.
  const uint64_t room = std::max(most_files - std::min(most_files, kOwnFiles), most_files / 2);
  return static_cast<size_t>(std::clamp<uint64_t>(room, 1, connections));
}

size_t claim_connections(size_t connections) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return connections;
  const rlim_t wanted = connections + kOwnFiles;
  if (limit.rlim_cur < wanted) {
    rlimit more = limit;
    more.rlim_cur = std::min(wanted, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &more) == 0) limit = more;
  }
  const size_t most = connections_within(connections, limit.rlim_cur);
  if (most < connections)
    log_warning(
        "{} connections at most, of the {} that --max-sequences and --max-queue may need: this "
        "process may open {} files; 'ulimit -n {}' before it starts allows all of them",
        most, connections, limit.rlim_cur, wanted);
  return most;
}

}  // namespace spillway
