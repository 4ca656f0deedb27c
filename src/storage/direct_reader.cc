// SPDX-License-Identifier: Apache-2.0
#include "storage/direct_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "base/printable.h"
#include "storage/file.h"

namespace spillway {
namespace {

constexpr uint64_t kAlign = kDirectAlignment;

uint64_t align_down(uint64_t value) { return value & ~(kAlign - 1); }
uint64_t align_up(uint64_t value) { return align_down(value + kAlign - 1); }
bool is_aligned(const std::byte* p) { return reinterpret_cast<uintptr_t>(p) % kAlign == 0; }

}  // namespace

// A file opened twice: through the page cache, and past it where that works.
class DirectReader::OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path)
      : file_(path), direct_fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT)) {
    direct_works_ = direct_fd_ >= 0;
  }
  ~OpenFile() {
    if (direct_fd_ >= 0) ::close(direct_fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  const File& file() const { return file_; }
  bool direct_works() const { return direct_works_.load(std::memory_order_relaxed); }

  // Reads whole blocks from an aligned offset into aligned memory. Returns false where fewer than
  // `needed` bytes came without an error: direct reads do not work here.
  bool try_read_blocks(uint64_t offset, std::span<std::byte> out, uint64_t needed) const {
    SPW_ASSERT(offset % kAlign == 0 && out.size() % kAlign == 0 && is_aligned(out.data()));
    uint64_t done = 0;
    while (done < needed) {
      const size_t length = std::min<uint64_t>(out.size() - done, uint64_t{1} << 30);
      const ssize_t n =
          ::pread(direct_fd_, out.data() + done, length, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno != EINVAL && errno != EOPNOTSUPP) {
        fail(ErrorCode::kIo, "reading {} at byte {}: {}", printable_path(file_.path()),
             offset + done, std::generic_category().message(errno));
      }
      if (n <= 0) break;
      done += static_cast<uint64_t>(n);
      if (done % kAlign != 0) break;  // the file's last block, or an odd short read
    }
    if (done >= needed) return true;
    direct_works_.store(false, std::memory_order_relaxed);
    return false;
  }

 private:
  File file_;
  int direct_fd_ = -1;
  mutable std::atomic<bool> direct_works_{false};
};

DirectReader::DirectReader(std::span<const std::filesystem::path> paths) {
  for (const auto& path : paths) files_.push_back(std::make_unique<OpenFile>(path));
}

DirectReader::~DirectReader() = default;

size_t DirectReader::buffer_bytes(uint64_t bytes) { return align_up(bytes) + kAlign; }

const DirectReader::OpenFile& DirectReader::open_file(int32_t file) const {
  SPW_CHECK(file >= 0 && static_cast<size_t>(file) < files_.size(), kInvalidArgument,
            "reading from file {} of {}", file, files_.size());
  return *files_[static_cast<size_t>(file)];
}

bool DirectReader::is_direct(int32_t file) const { return open_file(file).direct_works(); }

std::span<const std::byte> DirectReader::read(const Extent& extent,
                                              std::span<std::byte> buffer) const {
  const OpenFile& from = open_file(extent.file);
  const uint64_t size = from.file().size();
  SPW_CHECK(extent.offset <= size && extent.bytes <= size - extent.offset, kIo,
            "reading {}: {} bytes at byte {} end past the file's {} bytes",
            printable_path(from.file().path()), extent.bytes, extent.offset, size);
  SPW_ASSERT(buffer.size() >= buffer_bytes(extent.bytes) && is_aligned(buffer.data()));
  const uint64_t base = align_down(extent.offset), end = extent.offset + extent.bytes;
  const std::span<std::byte> wanted = buffer.subspan(extent.offset - base, extent.bytes);
  const auto blocks = buffer.first(align_up(end) - base);
  if (!from.direct_works() || !from.try_read_blocks(base, blocks, end - base)) {
    from.file().read_exact(extent.offset, wanted);
  }
  return wanted;
}

}  // namespace spillway
