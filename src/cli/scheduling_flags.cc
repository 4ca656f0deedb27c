// SPDX-License-Identifier: Apache-2.0
#include "cli/scheduling_flags.h"

#include <map>

#include "base/error.h"
#include "cli/command_line.h"
#include "cli/value_check.h"

namespace spillway {
namespace {

constexpr auto kSchedulingGroup = "Scheduling";

const std::map<std::string, OrderKind>& orders() {
  static const std::map<std::string, OrderKind> all = {{"first", OrderKind::kFirstCome},
                                                       {"fair", OrderKind::kFair},
                                                       {"shortest", OrderKind::kShortest}};
  return all;
}

}  // namespace

SchedulingOptions SchedulingFlags::options() const {
  const OrderKind order = orders().at(queue_order);
  SPW_CHECK(predicts() || order != OrderKind::kShortest, kInvalidArgument,
            "--queue-order {} goes by predicted lengths; leave out "
            "--length-predictor off, or give fair or first",
            queue_order);
  SPW_CHECK(predicts() || kv_admission != "predicted", kInvalidArgument,
            "--kv-admission predicted needs a length predictor; leave out --length-predictor "
            "off, or give whole or room");
  return {.order = order,
          .packs_predicted = predicts() && (kv_admission.empty() || kv_admission == "predicted")};
}

void add_scheduling_flags(Command& command, SchedulingFlags& flags,
                          const std::string& usual_order) {
  flags.queue_order = usual_order;
  command
      .add_option("--length-predictor", flags.length_predictor,
                  "who says how long answers will be: auto (built in; learns as answers end, and "
                  "keeps it beside the model's name in the cache folder), mean (as the answers "
                  "before), off, a file of spillway predictor train, which stays as it is, or a "
                  "folder with an encoder (docs/scheduling.md)")
      ->capture_default_str()
      ->group(kSchedulingGroup);
  command
      .add_option("--kv-admission", flags.kv_admission,
                  "how much KV memory there must be before a request begins: predicted (for all at "
                  "work as long as they will be; default), room (for what is known of it), whole "
                  "(no more requests than would fit if all were as long as they may be; default "
                  "with --length-predictor off)")
      ->check(one_of({"predicted", "room", "whole"}))
      ->group(kSchedulingGroup);
  command
      .add_option("--queue-order", flags.queue_order,
                  "order of admission: fair (clients share), first (come) or shortest "
                  "(predicted answer: the least mean wait)")
      ->check(one_of({"fair", "first", "shortest"}))
      ->capture_default_str()
      ->group(kSchedulingGroup);
}

}  // namespace spillway
