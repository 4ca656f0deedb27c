// SPDX-License-Identifier: Apache-2.0
#include "memory/block_file.h"

#include <vector>

#include "base/error.h"

namespace spillway {

BlockFile::BlockFile(IoQueue& queue, const std::filesystem::path& folder, size_t block_bytes,
                     uint32_t blocks, uint64_t budget_bytes)
    : file_(queue, {.dir = folder,
                    .label = "kv",
                    .user = IoUser::kKv,
                    .block_bytes = block_bytes,
                    .blocks = blocks,
                    .budget_bytes = budget_bytes}) {}

void BlockFile::read(std::span<const uint32_t> ids, std::byte* buffer) {
  std::vector<SpillRead> reads;
  reads.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i)
    reads.push_back(file_.read(ids[i], {buffer + i * stride(), stride()}));
  try {
    for (SpillRead& read : reads) read.wait();
  } catch (const Error& error) {
    // A block that is unreadable or not what was written is lost either way.
    fail(ErrorCode::kCorrupt, "{}", error.what());
  }
}

void BlockFile::write(std::span<const uint32_t> ids, const std::byte* buffer) {
  std::vector<IoTicket> writes;
  writes.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i)
    writes.push_back(file_.write(ids[i], {buffer + i * stride(), file_.block_bytes()}));
  for (IoTicket& write : writes) write.wait();
}

}  // namespace spillway
