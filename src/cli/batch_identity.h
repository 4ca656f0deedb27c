// SPDX-License-Identifier: Apache-2.0
// Which batch job it is: everything that decides the bytes of its output.
#pragma once

#include <cstdint>
#include <string>

#include "engine/result_settings.h"
#include "serve/job_fields.h"

namespace spillway {

struct BatchIdentity {
  std::string input;  // its checksum
  std::string model;  // model_fingerprint()
  int64_t context = 0;
  std::string chat_template;   // TemplateOption::identity()
  bool strict_fields = false;  // requests with unknown fields have no answers
  ResultSettings settings;

  // All of it, by name: what a journal keeps and a result's id is made of.
  JobFields fields() const;
  // Without the input: what the system_fingerprint of an answer stands for.
  JobFields without_input() const;
};

}  // namespace spillway
