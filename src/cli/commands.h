// SPDX-License-Identifier: Apache-2.0
// The commands of `spillway`; each adds itself to the command line and runs from its callback.
#pragma once

namespace spillway {

class Command;

// Adds all of the below to the program, in the order and under the headings of its help.
void add_commands(Command& app);

void add_run_command(Command& app);
void add_chat_command(Command& app);
void add_serve_command(Command& app);
void add_batch_command(Command& app);
void add_inspect_command(Command& app);
void add_eval_command(Command& app);
void add_bench_command(Command& app);
void add_plan_command(Command& app);
void add_profile_command(Command& app);
void add_tokenize_command(Command& app);
void add_predictor_command(Command& app);
void add_convert_command(Command& app);
void add_list_command(Command& app);
// Adds spillway help [COMMAND ...].
void add_help_command(Command& app);
// Developers use it for parity tests: it writes raw logits. Hidden from help.
void add_logits_command(Command& app);
// Also hidden, below `predictor`: it prints an encoder's embeddings of texts.
void add_embed_command(Command& parent);

}  // namespace spillway
