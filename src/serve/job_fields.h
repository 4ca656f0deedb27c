// SPDX-License-Identifier: Apache-2.0
// What a batch job is, as journals and results tell it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway {

// Name and value of each thing that a job's results depend on ("model", "--kv-type" ...).
using JobFields = std::vector<std::pair<std::string, std::string>>;

// A checksum of all of it: jobs with the same key have the same results.
std::string job_key(const JobFields& job);

// OpenAI's `system_fingerprint`: requests that differ in nothing else get the same answer where it
// is the same. A few digits of each field's checksum, so that it also tells what differs.
std::string system_fingerprint(const JobFields& settings);

// The names of the fields in which `settings` differ from those behind `fingerprint`; none where
// that is not the fingerprint of such settings.
std::vector<std::string> differing_settings(std::string_view fingerprint,
                                            const JobFields& settings);

}  // namespace spillway
