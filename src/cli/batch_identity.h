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
  // Identifies the chat template (TemplateOption::identity()); empty: the model's own
  std::string chat_template;
  bool strict_fields = false;  // requests with unknown fields get an error
  ResultSettings settings;

  // Returns all of it as named fields. They are stored in the job's journal (the file from which an
  // interrupted job is resumed), and ids of results are made from them.
  JobFields fields() const;
  // Returns all fields except the input. The system_fingerprint of answers is made from them.
  JobFields without_input() const;
};

}  // namespace spillway
