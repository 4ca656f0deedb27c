// SPDX-License-Identifier: Apache-2.0
// Carries pieces with pread and pwrite, one thread for each piece in flight.
#include <thread>
#include <vector>

#include "storage/io_calls.h"
#include "storage/io_pieces.h"

namespace spillway {
namespace {

class ThreadRunner final : public PieceRunner {
 public:
  ThreadRunner(PieceQueue& pieces, int user_threads)
      : pieces_(pieces), user_threads_(user_threads) {}
  ~ThreadRunner() override {
    for (std::thread& worker : workers_) worker.join();
  }

  IoBackend backend() const override { return IoBackend::kThreads; }
  void add_user() override {
    for (int i = 0; i < user_threads_; ++i) workers_.emplace_back([this] { carry(); });
  }
  void wake() override {}  // they wait in the queue itself

 private:
  void carry() {
    while (auto piece = pieces_.wait_next()) {
      int64_t result = 0;
      do {
        const int fd = piece->request->file->descriptor();
        result = piece->request->is_write ? write_call(fd, piece->rest(), piece->next_offset())
                                          : read_call(fd, piece->rest(), piece->next_offset());
      } while (pieces_.continue_after(*piece, result));
    }
  }

  PieceQueue& pieces_;
  const int user_threads_;
  std::vector<std::thread> workers_;  // each takes the next piece, of any user
};

}  // namespace

std::unique_ptr<PieceRunner> make_thread_runner(PieceQueue& pieces, int user_threads) {
  return std::make_unique<ThreadRunner>(pieces, user_threads);
}

}  // namespace spillway
