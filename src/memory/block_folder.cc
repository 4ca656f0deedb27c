// SPDX-License-Identifier: Apache-2.0
#include "memory/block_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <limits>
#include <system_error>
#include <utility>

#include "base/byte_units.h"
#include "base/error.h"
#include "base/fault_points.h"
#include "base/log.h"
#include "base/printable.h"
#include "memory/block_folder_room.h"
#include "storage/file_writer.h"
#include "storage/io_calls.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

constexpr int kMode = 0600;  // private, because KV reveals the text of prompts
constexpr int kMostFailures = 8;
constexpr size_t kFewEntries = 1024;

// Repeats a call that a signal interrupted.
template <class Call>
int64_t until_done(Call&& call) {
  int64_t result = 0;
  do {
    result = call();
  } while (result == -EINTR);
  return result;
}

FileDescriptor open_or_fail(const fs::path& path, int flags) {
  FileDescriptor fd;
  do {
    // With O_NONBLOCK and O_NOCTTY, opening something other than a file neither waits nor takes a
    // terminal. For regular files they change nothing.
    fd = open_call(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, kMode);
  } while (fd.get() == -EINTR);
  struct stat info {};
  // Opening a socket fails with ENXIO.
  const bool is_other =
      fd.is_open() ? ::fstat(fd.get(), &info) == 0 && !S_ISREG(info.st_mode) : fd.get() == -ENXIO;
  SPW_CHECK(!is_other, kInvalidArgument,
            "--kv-dir: {} is not a regular file; remove it or give another folder",
            printable_path(path));
  SPW_CHECK(fd.is_open(), kIo, "--kv-dir: cannot open {}: {}", printable_path(path),
            error_text(fd.get()));
  return fd;
}

std::vector<std::byte> read_all(int fd, const fs::path& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  std::vector<std::byte> bytes(error ? 0 : size);
  size_t have = 0;
  while (have < bytes.size()) {
    const int64_t n =
        until_done([&] { return read_call(fd, std::span(bytes).subspan(have), have); });
    SPW_CHECK(n >= 0, kIo, "--kv-dir: cannot read {}: {}", printable_path(path), error_text(n));
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  bytes.resize(have);
  return bytes;
}

}  // namespace

std::unique_ptr<BlockFolder> BlockFolder::try_open(IoQueue& queue,
                                                   const BlockFolderOptions& options) {
  SPW_ASSERT(options.block_bytes > 0);
  const FolderIdentity identity{.block_bytes = options.block_bytes, .salt = name_of(options.salt)};
  const fs::path folder = options.dir / folder_name(identity);
  std::vector<fs::path> own = {folder};
  for (const BlockFolderOptions::Kin& of : options.kin)
    own.push_back(options.dir /
                  folder_name({.block_bytes = of.block_bytes, .salt = name_of(of.salt)}));
  make_private_folder(options.dir);
  warn_if_none_fits(options.dir, own);
  make_private_folder(folder);
  FileDescriptor lock = open_or_fail(folder / "lock", O_RDWR | O_CREAT);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    log_warning(
        "another process uses the KV in {} (--kv-dir); this one goes on without it, and keeps none",
        printable_path(folder));
    return nullptr;
  }
  const uint64_t others = remove_unused_folders(options.dir, own, options.budget_bytes / 2);
  uint64_t room = options.budget_bytes - std::min(options.budget_bytes, others);
  if (!options.kin.empty()) room = static_cast<uint64_t>(static_cast<double>(room) * options.share);
  return std::unique_ptr<BlockFolder>(
      new BlockFolder(queue, folder, identity, std::move(lock), room));
}

BlockFolder::BlockFolder(IoQueue& queue, fs::path folder, const FolderIdentity& identity,
                         FileDescriptor lock, uint64_t budget_bytes)
    : queue_(queue),
      folder_(std::move(folder)),
      identity_(identity),
      stride_(align_up(identity.block_bytes)),
      lock_(std::move(lock)) {
  const uint64_t most = budget_bytes / (stride_ + 2 * kIndexEntryBytes);
  capacity_ = static_cast<uint32_t>(std::min<uint64_t>(most, std::numeric_limits<int32_t>::max()));
  if (capacity_ == 0)
    log_warning("--kv-dir-size: a block of KV takes {} on disk, and {} are left; none is kept",
                format_bytes(stride_), format_bytes(budget_bytes));
  file_ = std::make_unique<IoFile>(open_or_fail(folder_ / "blocks", O_RDWR | O_CREAT),
                                   folder_ / "blocks", IoUser::kKv);
  read_index();
  truncate_blocks();
}

BlockFolder::~BlockFolder() = default;

void BlockFolder::read_index() {
  const fs::path path = folder_ / "index";
  index_ = open_or_fail(path, O_RDWR | O_CREAT);
  const ParsedIndex parsed = parse_index(identity_, read_all(index_.get(), path));
  using State = ParsedIndex::State;
  SPW_CHECK(parsed.state != State::kForeign, kInvalidArgument,
            "--kv-dir: {} is not a file of spillway's; give another folder", printable_path(path));
  if (parsed.state == State::kOtherVersion)
    log_warning("the KV in {} is of another version of spillway; it is begun anew",
                printable_path(folder_));
  if (parsed.state == State::kOtherKind)
    log_warning("the index of the KV in {} is damaged; it is begun anew", printable_path(folder_));
  stats_.damaged += parsed.damaged + (parsed.state == State::kOtherKind ? 1 : 0);
  // An earlier budget may have been larger, but no block can be beyond the end of the file.
  const uint64_t slots = std::max<uint64_t>(capacity_, file_->size() / stride_);
  for (const FolderEntry& entry : parsed.entries) {
    if (entry.slot >= slots) continue;
    if (entry.slot >= slots_.size()) slots_.resize(entry.slot + 1);
    leave(entry.slot);
    if (entry.kind != FolderEntry::kWritten) continue;
    // If several entries have one name, the newest counts.
    if (const auto before = by_name_.find(entry.block.name); before != by_name_.end())
      leave(before->second);
    slots_[entry.slot] = {.taken = true, .entry = entry, .age = next_age_++};
    by_name_.emplace(entry.block.name, entry.slot);
  }
  for (auto slot = static_cast<uint32_t>(slots_.size()); slot-- > 0;) {
    if (!slots_[slot].taken) free_.push_back(slot);
  }
  index_entries_ = parsed.entries.size();
  index_end_ = kIndexHeaderBytes + (index_entries_ + parsed.damaged) * kIndexEntryBytes;
  const bool is_untidy = parsed.damaged > 0 || parsed.state != State::kGood ||
                         index_entries_ > 2 * by_name_.size() + kFewEntries;
  if (!is_untidy) return;
  try {
    write_index();
  } catch (const Error& error) {
    stop_writing(error.what());
  }
}

void BlockFolder::write_index() {
  std::vector<const Slot*> taken;
  for (const Slot& slot : slots_) {
    if (slot.taken) taken.push_back(&slot);
  }
  std::ranges::sort(taken, {}, [](const Slot* slot) { return slot->age; });
  const fs::path path = folder_ / "index";
  FileWriter writer(path);
  writer.write(index_header(identity_));
  for (const Slot* slot : taken) writer.write(index_entry(identity_, slot->entry));
  writer.commit();
  index_ = open_or_fail(path, O_RDWR);
  index_entries_ = taken.size();
  index_end_ = kIndexHeaderBytes + index_entries_ * kIndexEntryBytes;
}

bool BlockFolder::try_append(std::span<const FolderEntry> entries) {
  if (!writes_) return false;
  std::vector<std::byte> bytes;
  for (const FolderEntry& entry : entries) {
    const auto sealed = index_entry(identity_, entry);
    bytes.insert(bytes.end(), sealed.begin(), sealed.end());
  }
  size_t done = 0;
  while (done < bytes.size()) {
    const auto rest = std::span<const std::byte>(bytes).subspan(done);
    const int64_t n = until_done([&] { return write_call(index_.get(), rest, index_end_ + done); });
    if (n <= 0) {
      stop_writing(error_text(n));
      return false;
    }
    done += static_cast<size_t>(n);
  }
  index_end_ += bytes.size();
  index_entries_ += entries.size();
  return true;
}

void BlockFolder::stop_writing(const std::string& why) {
  if (!std::exchange(writes_, false)) return;
  log_warning("writing KV to {}: {}; no more is kept there", printable_path(folder_), why);
  capacity_ = static_cast<uint32_t>(by_name_.size());
}

std::vector<FolderBlock> BlockFolder::blocks() const {
  std::vector<const Slot*> taken;
  for (const auto& [name, slot] : by_name_) taken.push_back(&slots_[slot]);
  std::ranges::sort(taken, {}, [](const Slot* slot) { return slot->age; });
  std::vector<FolderBlock> blocks;
  for (const Slot* slot : taken) blocks.push_back(slot->entry.block);
  return blocks;
}

// Frees a slot without writing an entry to the index.
void BlockFolder::leave(uint32_t slot) {
  Slot& of = slots_[slot];
  if (!std::exchange(of.taken, false)) return;
  by_name_.erase(of.entry.block.name);
}

void BlockFolder::drop(const BlockName& name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return;
  const uint32_t slot = found->second;
  leave(slot);
  free_.push_back(slot);
  // If this entry cannot be appended the old one stays, but its checksum will not match the
  // slot's next bytes.
  const FolderEntry left{.kind = FolderEntry::kLeft, .slot = slot};
  (void)try_append({&left, 1});
  if (!writes_) capacity_ = static_cast<uint32_t>(by_name_.size());
}

bool BlockFolder::release_bytes(uint32_t slot) const {
  return until_done([&] { return punch_call(file_->descriptor(), offset_of(slot), stride_); }) == 0;
}

void BlockFolder::truncate_blocks() {
  size_t slots = slots_.size();
  while (slots > 0 && !slots_[slots - 1].taken) --slots;
  slots_.resize(slots);
  std::erase_if(free_, [&](uint32_t slot) { return slot >= slots; });
  const uint64_t bytes = uint64_t{slots} * stride_;
  if (file_->size() > bytes) until_done([&] { return truncate_call(file_->descriptor(), bytes); });
}

void BlockFolder::shrink(std::span<const BlockName> names) {
  const size_t before = by_name_.size();
  bool are_released = true;
  for (const BlockName& name : names) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) continue;
    const uint32_t slot = found->second;
    leave(slot);
    free_.push_back(slot);
    are_released &= release_bytes(slot);
  }
  truncate_blocks();
  // New blocks go to the lowest free slots first.
  std::ranges::sort(free_, std::greater());
  log_info(
      "--kv-dir: {} of {} blocks of KV in {} are evicted, those of least worth, so that it keeps "
      "to {} (--kv-dir-size){}",
      before - by_name_.size(), before, printable_path(folder_),
      format_bytes(uint64_t{capacity_} * stride_),
      are_released ? "" : "; the file system cannot free their bytes before the folder is removed");
  try {
    write_index();
  } catch (const Error& error) {
    stop_writing(error.what());
  }
}

uint32_t BlockFolder::take_slot() {
  if (free_.empty()) {
    slots_.emplace_back();
    return static_cast<uint32_t>(slots_.size() - 1);
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

std::vector<bool> BlockFolder::write(std::span<const FolderWrite> writes) {
  std::vector<bool> written(writes.size());
  SPW_ASSERT(writes.size() <= room());
  std::vector<FolderEntry> entries;
  std::vector<IoTicket> tickets;
  const auto end_of_file = static_cast<uint32_t>(slots_.size());
  for (const FolderWrite& write : writes) {
    drop(write.block.name);
    FolderEntry& entry = entries.emplace_back(
        FolderEntry{.kind = FolderEntry::kWritten, .slot = take_slot(), .block = write.block});
    entry.checksum = block_checksum(identity_, entry.slot, write.block,
                                    {write.bytes, static_cast<size_t>(identity_.block_bytes)});
    try {
      tickets.push_back(queue_.write(*file_, offset_of(entry.slot), {write.bytes, stride_}));
    } catch (const Error&) {
      tickets.emplace_back();  // it could not be queued: treated as a failed write
    }
  }
  std::string failure;
  std::vector<FolderEntry> good;
  bool cannot_grow = false;
  for (size_t i = 0; i < writes.size(); ++i) {
    try {
      SPW_CHECK(tickets[i].pending(), kIo, "{} cannot be written now", printable_path(folder_));
      tickets[i].wait();
      written[i] = true;
      good.push_back(entries[i]);
      failures_ = 0;
    } catch (const Error& error) {
      failure = error.what();
      ++failures_;
      cannot_grow |= entries[i].slot >= end_of_file;
    }
  }
  if (!good.empty() && !try_append(good)) std::fill(written.begin(), written.end(), false);
  for (size_t i = 0; i < writes.size(); ++i) {
    if (!written[i]) {
      free_.push_back(entries[i].slot);
      continue;
    }
    slots_[entries[i].slot] = {.taken = true, .entry = entries[i], .age = next_age_++};
    by_name_.emplace(entries[i].block.name, entries[i].slot);
    stats_.written_bytes += stride_;
  }
  if (failures_ >= kMostFailures) {
    stop_writing(failure);
  } else if (cannot_grow && writes_) {
    capacity_ = static_cast<uint32_t>(by_name_.size());
    log_warning("{}; the KV that is kept on disk (--kv-dir) stays at {}", failure,
                format_bytes(uint64_t{capacity_} * stride_));
  }
  if (writes_ && index_entries_ > 4 * by_name_.size() + kFewEntries) {
    try {
      write_index();
    } catch (const Error& error) {
      stop_writing(error.what());
    }
  }
  return written;
}

std::vector<bool> BlockFolder::read(std::span<const FolderRead> reads) {
  std::vector<bool> good(reads.size());
  std::vector<IoTicket> tickets(reads.size());
  for (size_t i = 0; i < reads.size(); ++i) {
    const auto found = by_name_.find(reads[i].name);
    if (found == by_name_.end()) continue;
    try {
      tickets[i] = queue_.read(*file_, offset_of(found->second), {reads[i].bytes, stride_});
    } catch (const Error& error) {
      log_warning("{}; that KV is computed again", error.what());
    }
  }
  for (size_t i = 0; i < reads.size(); ++i) {
    if (!tickets[i].pending()) continue;
    const FolderEntry& entry = slots_[by_name_.at(reads[i].name)].entry;
    try {
      tickets[i].wait();
      if (injected_error("spill.flip")) reads[i].bytes[0] ^= std::byte{0x10};
      const std::span<const std::byte> bytes(reads[i].bytes,
                                             static_cast<size_t>(identity_.block_bytes));
      good[i] = block_checksum(identity_, entry.slot, entry.block, bytes) == entry.checksum;
    } catch (const Error& error) {
      log_warning("{}; that KV is computed again", error.what());
    }
    if (good[i]) {
      stats_.read_bytes += stride_;
    } else {
      ++stats_.damaged;
      drop(reads[i].name);
    }
  }
  return good;
}

}  // namespace spillway
