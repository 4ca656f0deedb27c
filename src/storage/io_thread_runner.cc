// SPDX-License-Identifier: Apache-2.0
// Pieces through pread and pwrite, one thread for each that is with the system.
#include <thread>
#include <vector>

#include "storage/io_calls.h"
#include "storage/io_pieces.h"

namespace spillway {
namespace {

class ThreadRunner final : public PieceRunner {
 public:
  ThreadRunner(PieceQueue& pieces, int threads) {
    for (int i = 0; i < threads; ++i) {
      workers_.emplace_back([&pieces] {
        while (auto piece = pieces.wait_next()) {
          int64_t result = 0;
          do {
            const int fd = piece->request->file->descriptor();
            result = piece->request->is_write ? write_call(fd, piece->rest(), piece->next_offset())
                                              : read_call(fd, piece->rest(), piece->next_offset());
          } while (pieces.continue_after(*piece, result));
        }
      });
    }
  }
  ~ThreadRunner() override {
    for (std::thread& worker : workers_) worker.join();
  }

  IoBackend backend() const override { return IoBackend::kThreads; }
  void wake() override {}  // they wait in the queue itself

 private:
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<PieceRunner> make_thread_runner(PieceQueue& pieces, int threads) {
  return std::make_unique<ThreadRunner>(pieces, threads);
}

}  // namespace spillway
