// SPDX-License-Identifier: Apache-2.0
#include "storage/direct_reader.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/error.h"
#include "base/printable.h"
#include "storage/file.h"
#include "storage/io_calls.h"

namespace spillway {

// A file opened twice: through the page cache, and directly where that works.
class DirectReader::OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path)
      : file_(path), direct_fd_(open_call(path, O_RDONLY | O_CLOEXEC | O_DIRECT)) {
    direct_works_ = direct_fd_.is_open();
  }

  const File& file() const { return file_; }
  bool direct_works() const { return direct_works_.load(std::memory_order_relaxed); }

  // Reads whole blocks from an aligned offset into aligned memory. Returns false if fewer than
  // `needed` bytes came without an error, which means that direct reads do not work here.
  bool try_read_blocks(uint64_t offset, std::span<std::byte> out, uint64_t needed) const {
    SPW_ASSERT(offset % kDirectAlignment == 0 && out.size() % kDirectAlignment == 0 &&
               is_aligned(out.data()));
    uint64_t done = 0;
    while (done < needed) {
      const int64_t n = read_call(direct_fd_.get(), out.subspan(done), offset + done);
      if (n == -EINTR) continue;
      if (n < 0 && n != -EINVAL && n != -EOPNOTSUPP) {
        fail(ErrorCode::kIo, "reading {} at byte {}: {}", printable_path(file_.path()),
             offset + done, error_text(n));
      }
      if (n <= 0) break;
      done += static_cast<uint64_t>(n);
      if (done % kDirectAlignment != 0) break;  // the file's last block, or a short read
    }
    if (done >= needed) return true;
    direct_works_.store(false, std::memory_order_relaxed);
    return false;
  }

 private:
  File file_;
  FileDescriptor direct_fd_;
  mutable std::atomic<bool> direct_works_{false};
};

DirectReader::DirectReader(std::span<const std::filesystem::path> paths) {
  for (const auto& path : paths) files_.push_back(std::make_unique<OpenFile>(path));
}

DirectReader::~DirectReader() = default;

size_t DirectReader::buffer_bytes(uint64_t bytes) { return align_up(bytes) + kDirectAlignment; }

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
