// SPDX-License-Identifier: Apache-2.0
// Drafts on the command line: which tokens are proposed before they are computed.
#pragma once

#include "engine/draft_options.h"

namespace spillway {

class Command;
class CommandOption;

// --draft, for commands that generate; the options must outlive the command.
CommandOption* add_draft_flag(Command& command, DraftOptions& options);
// Besides it, for spillway bench: drafts that are accepted by chance.
void add_drawn_draft_flags(Command& command, DraftOptions& options);

}  // namespace spillway
