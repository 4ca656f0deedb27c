// SPDX-License-Identifier: Apache-2.0
// Describes a batch job for its results and for its journal, the file from which it is resumed.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway {

// Name and value of each setting that a job's results depend on ("model", "--kv-type" ...).
using JobFields = std::vector<std::pair<std::string, std::string>>;

// Returns a checksum of all fields: jobs with the same key have the same results.
std::string job_key(const JobFields& job);

// Returns OpenAI's `system_fingerprint`: equal requests get the same answer if it is the same. It
// has a few digits of each field's checksum, so that it also tells which fields differ.
std::string system_fingerprint(const JobFields& settings);

// Returns the names of the fields in which `settings` differ from those of which `fingerprint` was
// made; empty if `fingerprint` has another form.
std::vector<std::string> differing_settings(std::string_view fingerprint,
                                            const JobFields& settings);

}  // namespace spillway
