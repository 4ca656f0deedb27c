// SPDX-License-Identifier: Apache-2.0
// What parsers are given that strangers write for: any bytes at all.
//
// A target returns whatever the bytes are. One that throws, crashes, hangs or is caught by a
// sanitizer has found something. libFuzzer runs them (libfuzzer_entry.cc, scripts/fuzz.sh), and
// fuzz_test a bounded, seeded part of that without it.
#pragma once

#include <string_view>

namespace spillway {

// A connection's bytes: the same requests and the same error however they are cut into pieces, and
// nothing beyond the limits.
void fuzz_http_request(std::string_view bytes);
// A model's template, with a conversation of every kind of message.
void fuzz_chat_template(std::string_view bytes);
// The body of a request to each route that takes one.
void fuzz_api_request(std::string_view bytes);

}  // namespace spillway
