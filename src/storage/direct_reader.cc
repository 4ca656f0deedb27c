// SPDX-License-Identifier: Apache-2.0
#include "storage/direct_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/printable.h"
#include "storage/file.h"

namespace spillway {
namespace {

constexpr uint64_t kAlign = kDirectAlignment;

uint64_t align_down(uint64_t value) { return value & ~(kAlign - 1); }
uint64_t align_up(uint64_t value) { return align_down(value + kAlign - 1); }
bool is_aligned(const std::byte* p) { return reinterpret_cast<uintptr_t>(p) % kAlign == 0; }

class AlignedBuffer {
 public:
  explicit AlignedBuffer(size_t bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(kAlign, align_up(bytes)))) {
    SPW_CHECK(data_ != nullptr, kOutOfMemory, "no memory for a staging buffer of {} bytes", bytes);
  }
  std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
};

// A file opened twice: through the page cache, and past it where that works.
class Channel {
 public:
  Channel(const std::filesystem::path& path, bool direct) : file_(path) {
    if (direct) direct_fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    direct_works_ = direct_fd_ >= 0;
  }
  ~Channel() {
    if (direct_fd_ >= 0) ::close(direct_fd_);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  const File& file() const { return file_; }
  bool direct_works() const { return direct_works_.load(std::memory_order_relaxed); }

  // Reads whole blocks from an aligned offset into aligned memory of `blocks_bytes`. Returns false
  // where fewer than `needed` came without an error: direct reads do not work here.
  bool try_read_blocks(uint64_t offset, std::byte* out, uint64_t blocks_bytes, uint64_t needed) {
    SPW_ASSERT(offset % kAlign == 0 && blocks_bytes % kAlign == 0 && is_aligned(out));
    uint64_t done = 0;
    while (done < needed) {
      const size_t length = std::min<uint64_t>(blocks_bytes - done, uint64_t{1} << 30);
      const ssize_t n = ::pread(direct_fd_, out + done, length, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno != EINVAL && errno != EOPNOTSUPP) {
        fail(ErrorCode::kIo, "reading {} at byte {}: {}", printable_path(file_.path()),
             offset + done, std::generic_category().message(errno));
      }
      if (n <= 0) break;
      done += static_cast<uint64_t>(n);
      if (done % kAlign != 0) break;  // the file's last block, or an odd short read
    }
    return done >= needed;
  }
  void give_up_direct() { direct_works_.store(false, std::memory_order_relaxed); }

 private:
  File file_;
  int direct_fd_ = -1;
  std::atomic<bool> direct_works_{false};
};

struct Chunk {
  Channel* channel = nullptr;
  uint64_t offset = 0;
  std::span<std::byte> destination;
};

// The work of one read(), shared by its threads.
class Job {
 public:
  Job(std::vector<Chunk> chunks, const ReadOptions& options, size_t chunk_bytes)
      : chunks_(std::move(chunks)), options_(options), chunk_bytes_(chunk_bytes) {}

  void run() {
    const size_t wanted = std::min(chunks_.size(), static_cast<size_t>(options_.threads));
    std::vector<std::thread> threads;
    for (size_t i = 1; i < wanted; ++i) {
      try {
        threads.emplace_back([this] { work(); });
      } catch (const std::system_error&) {
        break;  // fewer in flight, the same bytes
      }
    }
    work();
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
  }
  ReadStats stats() const { return stats_; }

 private:
  void work() noexcept {
    try {
      const AlignedBuffer staging(chunk_bytes_ + 2 * kAlign);
      while (!stop_.load(std::memory_order_relaxed)) {
        const size_t i = next_.fetch_add(1, std::memory_order_relaxed);
        if (i >= chunks_.size()) return;
        SPW_CHECK(options_.cancel == nullptr || !options_.cancel->load(), kCancelled,
                  "reading {} was cancelled", chunks_[i].channel->file().label());
        const ReadStats part = read_chunk(chunks_[i], staging.data());
        const std::lock_guard lock(mutex_);
        stats_.bytes += part.bytes;
        stats_.direct_bytes += part.direct_bytes;
        stats_.copied_bytes += part.copied_bytes;
        if (options_.progress && !stop_.load(std::memory_order_relaxed))
          options_.progress(stats_.bytes);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      stop_.store(true, std::memory_order_relaxed);
    }
  }

  static ReadStats read_chunk(const Chunk& chunk, std::byte* staging) {
    ReadStats stats{chunk.destination.size(), 0, 0};
    if (chunk.channel->direct_works()) {
      if (const auto copied = try_read_direct(chunk, staging)) {
        stats.direct_bytes = stats.bytes;
        stats.copied_bytes = *copied;
        return stats;
      }
      chunk.channel->give_up_direct();
    }
    chunk.channel->file().read_exact(chunk.offset, chunk.destination);
    return stats;
  }

  // The bytes that went through staging; nullopt where direct reads do not work.
  static std::optional<uint64_t> try_read_direct(const Chunk& chunk, std::byte* staging) {
    const uint64_t begin = chunk.offset;
    const uint64_t end = begin + chunk.destination.size();
    std::byte* out = chunk.destination.data();
    const auto staged = [&](uint64_t from, uint64_t to) {
      if (from >= to) return true;
      const uint64_t base = align_down(from);
      if (!chunk.channel->try_read_blocks(base, staging, align_up(to) - base, to - base))
        return false;
      std::memcpy(out + (from - begin), staging + (from - base), to - from);
      return true;
    };
    const uint64_t body = align_up(begin);
    const uint64_t body_end = align_down(end);
    const bool in_place = reinterpret_cast<uintptr_t>(out) % kAlign == begin % kAlign;
    if (!in_place || body >= body_end) {
      if (!staged(begin, end)) return std::nullopt;
      return end - begin;
    }
    const uint64_t body_bytes = body_end - body;
    if (!staged(begin, body) ||
        !chunk.channel->try_read_blocks(body, out + (body - begin), body_bytes, body_bytes) ||
        !staged(body_end, end))
      return std::nullopt;
    return (body - begin) + (end - body_end);
  }

  std::vector<Chunk> chunks_;
  const ReadOptions& options_;
  size_t chunk_bytes_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards what follows
  ReadStats stats_;
  std::exception_ptr error_;
};

}  // namespace

ReadStats DirectReader::read(std::span<const ReadRequest> requests,
                             const ReadOptions& options) const {
  SPW_CHECK(options.threads >= 1 && options.threads <= 256, kInvalidArgument,
            "{} reading threads, expected 1 to 256", options.threads);
  const uint64_t chunk_bytes =
      std::clamp(align_up(options.chunk_bytes), kAlign, uint64_t{256} << 20);
  std::map<int32_t, Channel> channels;
  std::vector<Chunk> chunks;
  for (const ReadRequest& request : requests) {
    SPW_CHECK(request.file >= 0 && static_cast<size_t>(request.file) < paths_.size(),
              kInvalidArgument, "reading from file {} of {}", request.file, paths_.size());
    const std::filesystem::path& path = paths_[static_cast<size_t>(request.file)];
    Channel& channel = channels.try_emplace(request.file, path, options.direct).first->second;
    const uint64_t size = channel.file().size();
    SPW_CHECK(request.offset <= size && request.destination.size() <= size - request.offset, kIo,
              "reading {}: {} bytes at byte {} end past the file's {} bytes", printable_path(path),
              request.destination.size(), request.offset, size);
    // Cut where the file offset is a multiple of the chunk, so that all cuts are aligned.
    const uint64_t end = request.offset + request.destination.size();
    for (uint64_t at = request.offset; at < end;) {
      const uint64_t next = std::min(end, (at / chunk_bytes + 1) * chunk_bytes);
      chunks.push_back({&channel, at, request.destination.subspan(at - request.offset, next - at)});
      at = next;
    }
  }
  if (chunks.empty()) return {};
  Job job(std::move(chunks), options, chunk_bytes);
  job.run();
  return job.stats();
}

ArenaLayout place_extents(std::span<const Extent> extents, uint64_t alignment) {
  SPW_CHECK(alignment >= 1 && kAlign % alignment == 0, kInvalidArgument,
            "alignment {} does not divide {}", alignment, kAlign);
  std::vector<size_t> order(extents.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, {},
                    [&](size_t i) { return std::pair(extents[i].file, extents[i].offset); });
  ArenaLayout layout;
  layout.positions.resize(extents.size());
  uint64_t end = 0;
  for (const size_t i : order) {
    const uint64_t residue = extents[i].offset % alignment == 0 ? extents[i].offset % kAlign : 0;
    uint64_t position = align_down(end) + residue;
    if (position < end) position += kAlign;
    layout.positions[i] = position;
    const auto next = try_add(position, extents[i].bytes);
    SPW_CHECK(next && *next <= (uint64_t{1} << 62), kInvalidArgument,
              "extents of more than 2^62 bytes");
    end = *next;
  }
  layout.bytes = align_up(end);
  return layout;
}

}  // namespace spillway
