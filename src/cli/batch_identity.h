// SPDX-License-Identifier: Apache-2.0
// The identity of a batch job: everything that decides the bytes of its output.
#pragma once

#include <cstdint>
#include <string>

#include "engine/result_settings.h"
#include "serve/job_fields.h"

namespace spillway {

struct BatchIdentity {
  std::string input;  // checksum of the input
  std::string model;  // model_fingerprint()
  int64_t context = 0;
  std::string chat_template;   // TemplateOption::identity()
  bool strict_fields = false;  // requests with unknown fields get an error
  ResultSettings settings;

  // Returns all of it as named fields, which the journal stores and from which ids of results are
  // made.
  JobFields fields() const;
  // Returns all fields but the input, from which the system_fingerprint of answers is made.
  JobFields without_input() const;
};

}  // namespace spillway
