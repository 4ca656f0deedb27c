// SPDX-License-Identifier: Apache-2.0
// Computes how many connections a server may have open: as many as its queue needs and the system
// allows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spillway {

// Returns the connections for `requests` that run or wait, one each, and some more for clients that
// keep theirs open between requests, and for health checks.
size_t connections_for(size_t requests);

// Returns how many of these one client address may have; the rest is for other clients.
size_t connections_of_client(size_t connections);

// Returns how many of `connections` fit in a process that may open `most_files` files and needs
// some for itself; at least one.
size_t connections_within(size_t connections, uint64_t most_files);

// Does the same for this process, after raising its limit of files as far as needed and allowed. If
// there have to be fewer connections, logs a warning with advice.
size_t claim_connections(size_t connections);

}  // namespace spillway
