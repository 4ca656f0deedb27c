// SPDX-License-Identifier: Apache-2.0
#include "cli/batch_identity.h"

namespace spillway {

JobFields BatchIdentity::fields() const {
  // A new member stops this from compiling until it is added to the fields.
  const auto& [requests, files, room, chat, strict, how] = *this;
  JobFields fields =
      name_fields({"input", "model", "--ctx", "--template", "--strict-fields"}, requests, files,
                  std::to_string(room), chat.empty() ? std::string("the model's") : chat,
                  std::string(strict ? "yes" : "no"));
  const JobFields more = how.fields();
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

JobFields BatchIdentity::without_input() const {
  JobFields all = fields();
  all.erase(all.begin());
  return all;
}

}  // namespace spillway
