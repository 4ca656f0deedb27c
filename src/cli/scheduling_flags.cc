// SPDX-License-Identifier: Apache-2.0
#include "cli/scheduling_flags.h"

#include <map>

#include "base/error.h"
#include "cli/command_line.h"
#include "cli/value_check.h"

namespace spillway {
namespace {

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
                  "what predicts the lengths of answers: auto (built in, learns as answers end and "
                  "keeps that in the cache folder), mean (of the answers before), off, a file of "
                  "spillway predictor train, or a folder with an encoder (docs/scheduling.md)")
      ->placeholder("NAME|PATH")
      ->group(HelpGroup::kRequests);
  command
      .add_option("--kv-admission", flags.kv_admission,
                  "how much KV memory there must be before a request is admitted: predicted (for "
                  "all running requests at their predicted lengths), room (for its prompt) or "
                  "whole (as if every request became as long as it may)")
      ->check(one_of({"predicted", "room", "whole"}))
      ->default_text("predicted; with --length-predictor off whole")
      ->group(HelpGroup::kRequests);
  command
      .add_option("--queue-order", flags.queue_order,
                  "which request is admitted first: fair (clients share), first (come) or "
                  "shortest (predicted answer: the least mean wait)")
      ->check(one_of({"fair", "first", "shortest"}))
      ->group(HelpGroup::kRequests);
}

}  // namespace spillway
