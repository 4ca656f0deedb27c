// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"

#include "cli/command_line.h"

namespace spillway {

void add_commands(Command& app) {
  app.begin_group("Talk to a model, generate text");
  add_chat_command(app);
  add_run_command(app);
  app.begin_group("Answer many requests");
  add_serve_command(app);
  add_batch_command(app);
  app.begin_group("Know whether a model fits, and how fast and how good it is");
  add_plan_command(app);
  add_profile_command(app);
  add_bench_command(app);
  add_eval_command(app);
  app.begin_group("Work with models and texts");
  add_list_command(app);
  add_inspect_command(app);
  add_convert_command(app);
  add_tokenize_command(app);
  add_predictor_command(app);
  app.begin_group("Read on");
  add_help_command(app);
  add_logits_command(app);
}

}  // namespace spillway
