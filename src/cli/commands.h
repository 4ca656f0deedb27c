// SPDX-License-Identifier: Apache-2.0
// The commands of `spillway`; each adds itself to the command line and runs from its callback.
#pragma once

namespace CLI {
class App;
}

namespace spillway {

void add_run_command(CLI::App& app);
void add_chat_command(CLI::App& app);
void add_serve_command(CLI::App& app);
void add_batch_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_profile_command(CLI::App& app);
void add_tokenize_command(CLI::App& app);
void add_predictor_command(CLI::App& app);
void add_convert_command(CLI::App& app);
void add_list_command(CLI::App& app);
// For developers, not listed in --help: raw logits for parity tests.
void add_logits_command(CLI::App& app);
// Also not listed, a part of `predictor`: what an encoder makes of texts.
void add_embed_command(CLI::App& parent);

}  // namespace spillway
