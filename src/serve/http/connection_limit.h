// SPDX-License-Identifier: Apache-2.0
// How many connections a server may have open: what its queue needs, as far as the system allows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spillway {

// For so many requests at work or waiting, one a connection, and others beside them: clients that
// keep theirs open between requests, and whoever asks how the server is.
size_t connections_for(size_t requests);

// Of these, what one client address may have: the rest is for other clients.
size_t connections_of_client(size_t connections);

// Of `connections`, as many as a process with `most_files` open ones can have beside its own; at
// least one.
size_t connections_within(size_t connections, uint64_t most_files);

// The same for this process, whose limit is raised as far as it may be and need be. Warns where it
// has to be fewer, and says what to do.
size_t claim_connections(size_t connections);

}  // namespace spillway
