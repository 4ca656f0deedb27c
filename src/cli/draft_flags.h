// SPDX-License-Identifier: Apache-2.0
// Flags for speculative decoding: where draft tokens come from.
#pragma once

#include "engine/draft_options.h"

namespace spillway {

class Command;
class CommandOption;

// Adds --draft, for commands that generate; the options must outlive the command.
CommandOption* add_draft_flag(Command& command, DraftOptions& options);
// Also adds, for spillway bench, drafts that are accepted at random.
void add_drawn_draft_flags(Command& command, DraftOptions& options);

}  // namespace spillway
