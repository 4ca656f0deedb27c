// SPDX-License-Identifier: Apache-2.0
// disk_bench: measures which share of the disk's rate IoQueue reaches, compared with a plain loop
// of threads with pread and pwrite. The ways alternate on a file that it makes and removes.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file_descriptor.h"
#include "bench/median.h"
#include "storage/async_io.h"
#include "storage/spill_file.h"

namespace spillway {
namespace {

using nlohmann::json;

struct Options {
  std::string dir = ".";
  uint64_t mib = 1024;
  int repeat = 7, depth = 32, threads = 16, raw_threads = 16;
  uint64_t piece_kib = 1024, request_mib = 64, block_kib = 128;
  bool raw_reads = false, as_json = false;
};

// The simplest loop: threads take the next piece from a counter.
double raw_loop(const IoFile& file, std::span<std::byte> memory, const Options& options,
                bool write) {
  const size_t piece = options.piece_kib << 10;
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < options.raw_threads; ++i) {
    threads.emplace_back([&] {
      for (size_t at = next.fetch_add(piece); at < memory.size(); at = next.fetch_add(piece)) {
        const size_t bytes = std::min(piece, memory.size() - at);
        const auto offset = static_cast<off_t>(at);
        const ssize_t n = write ? ::pwrite(file.descriptor(), memory.data() + at, bytes, offset)
                                : ::pread(file.descriptor(), memory.data() + at, bytes, offset);
        if (n != static_cast<ssize_t>(bytes)) failed = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  SPW_CHECK(!failed, kIo, "the raw loop failed on {}", file.path().string());
  return static_cast<double>(memory.size()) / took.count() / 1e9;
}

// Transfers in requests of request_mib, one after another if `alone`, else all together.
double through_queue(IoQueue& queue, const IoFile& file, std::span<std::byte> memory,
                     const Options& options, bool write, bool alone) {
  const size_t request = options.request_mib << 20;
  const auto start = std::chrono::steady_clock::now();
  std::vector<IoTicket> tickets;
  for (size_t at = 0; at < memory.size(); at += request) {
    const auto part = memory.subspan(at, std::min(request, memory.size() - at));
    tickets.push_back(write ? queue.write(file, at, part) : queue.read(file, at, part));
    if (alone) tickets.back().wait();
  }
  wait_all(tickets);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return static_cast<double>(memory.size()) / took.count() / 1e9;
}

// Transfers spilled blocks as KV does: each is a request of its own, in random order, with
// checksums.
double spill(SpillFile& file, std::span<std::byte> memory, const Options& options, bool write) {
  const size_t bytes = options.block_kib << 10;
  std::vector<uint32_t> order(file.blocks());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  const size_t ahead = 2 * static_cast<size_t>(options.depth);
  const auto start = std::chrono::steady_clock::now();
  std::vector<IoTicket> writes(write ? ahead : 0);
  std::vector<SpillRead> reads(write ? 0 : ahead);
  for (size_t i = 0; i < order.size(); ++i) {
    const auto part = memory.subspan(order[i] * bytes, bytes);
    if (write) {
      writes[i % ahead].wait();
      writes[i % ahead] = file.write(order[i], part);
    } else {
      if (reads[i % ahead].pending()) reads[i % ahead].wait();
      reads[i % ahead] = file.read(order[i], part);
    }
  }
  wait_all(writes);
  for (SpillRead& read : reads) {
    if (read.pending()) read.wait();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return static_cast<double>(order.size() * bytes) / took.count() / 1e9;
}

// The file is removed as soon as it is made; the descriptor keeps it alive.
IoFile make_file(const Options& options) {
  std::string name = options.dir + "/disk_bench-XXXXXX";
  FileDescriptor fd(::mkostemp(name.data(), O_CLOEXEC));
  SPW_CHECK(fd.is_open(), kIo, "cannot make a file in {}", options.dir);
  ::unlink(name.c_str());
  return IoFile(std::move(fd), name);
}

json measure(const Options& options) {
  AlignedBuffer memory(options.mib << 20);
  madvise(memory.data(), memory.size(), MADV_HUGEPAGE);  // like staging memory
  std::mt19937_64 random(1);
  for (size_t at = 0; at < memory.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random();  // a disk may compress repetitions or skip them
    std::copy_n(reinterpret_cast<const std::byte*>(&word), sizeof word, memory.data() + at);
  }
  const IoFile file = make_file(options);
  IoQueueOptions queue_options{
      .depth = options.depth, .piece_bytes = options.piece_kib << 10, .threads = options.threads};
  std::map<std::string, std::function<double(bool)>> ways;
  std::vector<std::unique_ptr<IoQueue>> queues;
  std::vector<std::unique_ptr<SpillFile>> spills;
  // Backend `auto` reads like uring, where that works, and writes like threads.
  for (const auto& [name, backend] :
       {std::pair{"uring", IoBackend::kUring}, std::pair{"threads", IoBackend::kThreads}}) {
    queue_options.backend = backend;
    try {
      queues.push_back(std::make_unique<IoQueue>(queue_options));
    } catch (const Error& error) {
      fmt::print(stderr, "disk_bench: {}\n", error.what());
      continue;
    }
    IoQueue& queue = *queues.back();
    spills.push_back(std::make_unique<SpillFile>(
        queue,
        SpillOptions{.dir = options.dir,
                     .block_bytes = options.block_kib << 10,
                     .blocks = static_cast<uint32_t>(memory.size() / (options.block_kib << 10))}));
    ways[std::string(name) + "_spill"] = [&, file_of_blocks = spills.back().get()](bool write) {
      return spill(*file_of_blocks, memory.span(), options, write);
    };
    for (const bool alone : {false, true}) {
      ways[std::string(name) + (alone ? "_one_request" : "")] = [&, alone](bool write) {
        return through_queue(queue, file, memory.span(), options, write, alone);
      };
    }
  }
  ways["raw"] = [&](bool write) { return raw_loop(file, memory.span(), options, write); };

  json result = {{"dir", options.dir},
                 {"mib", options.mib},
                 {"repeat", options.repeat},
                 {"direct", file.is_direct()},
                 {"depth", options.depth},
                 {"threads", options.threads},
                 {"raw_threads", options.raw_threads},
                 {"piece_kib", options.piece_kib},
                 {"request_mib", options.request_mib},
                 {"block_kib", options.block_kib}};
  if (options.raw_reads) std::erase_if(ways, [](const auto& way) { return way.first != "raw"; });
  for (const auto& [name, way] : ways) way(true);  // at the first write the disk allocates blocks
  for (const bool write : {true, false}) {
    if (write && options.raw_reads) continue;
    std::map<std::string, std::vector<double>> rates;
    for (int i = 0; i < options.repeat; ++i) {
      for (const auto& [name, way] : ways) rates[name].push_back(way(write));
    }
    const double raw = median(rates["raw"]);
    for (const auto& [name, all] : rates) {
      result[write ? "write" : "read"][name] = {
          {"gb_per_s", median(all)},
          {"best_gb_per_s", *std::max_element(all.begin(), all.end())},
          {"share_of_raw", median(all) / raw}};
    }
  }
  return result;
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("How much of the disk asynchronous I/O gets, beside a plain loop of threads.");
  app.add_option("dir", options.dir, "folder on the disk to measure")
      ->check(CLI::ExistingDirectory);
  app.add_option("--mib", options.mib, "size of the file, and of the memory")
      ->check(CLI::PositiveNumber);
  app.add_option("--repeat", options.repeat, "measurements of each kind")
      ->check(CLI::PositiveNumber);
  app.add_option("--depth", options.depth, "pieces on their way at once");
  app.add_option("--threads", options.threads, "threads of the queue without io_uring");
  app.add_option("--raw-threads", options.raw_threads, "threads of the plain loop");
  app.add_option("--piece-kib", options.piece_kib, "length of pieces");
  app.add_option("--request-mib", options.request_mib, "length of requests")
      ->check(CLI::PositiveNumber);
  app.add_option("--block-kib", options.block_kib, "length of spilled blocks, a multiple of 4")
      ->check(CLI::PositiveNumber);
  app.add_flag("--raw-reads", options.raw_reads, "only what the plain loop reads");
  app.add_flag("--json", options.as_json, "print JSON");
  CLI11_PARSE(app, argc, argv);
  const json result = measure(options);
  if (options.as_json) {
    fmt::print("{}\n", result.dump(2));
    return 0;
  }
  for (const char* direction : {"write", "read"}) {
    if (!result.contains(direction)) continue;
    for (const auto& [name, figures] : result[direction].items()) {
      fmt::print("{:5} {:20} {:6.2f} GB/s, best {:6.2f}, {:4.0f}% of the raw loop\n", direction,
                 name, figures["gb_per_s"].get<double>(), figures["best_gb_per_s"].get<double>(),
                 100 * figures["share_of_raw"].get<double>());
    }
  }
  return 0;
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  try {
    return spillway::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "disk_bench: {}\n", error.what());
    return 1;
  }
}
