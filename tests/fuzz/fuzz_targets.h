// SPDX-License-Identifier: Apache-2.0
// Fuzz targets for the parsers that read input from strangers: each takes any bytes at all.
//
// A target returns whatever the bytes are. One that throws, crashes, hangs or is caught by a
// sanitizer has found something. libFuzzer runs them (libfuzzer_entry.cc, scripts/fuzz.sh), and
// fuzz_test runs a bounded, seeded part of that without it.
#pragma once

#include <string_view>

namespace spillway {

// Parses a connection's bytes: requests and the error must be the same however the bytes are cut
// into pieces, and within the limits.
void fuzz_http_request(std::string_view bytes);
// Parses a model's chat template, and renders it for a conversation with every kind of message.
void fuzz_chat_template(std::string_view bytes);
// Parses the body of a request to each route that takes one.
void fuzz_api_request(std::string_view bytes);

}  // namespace spillway
