// SPDX-License-Identifier: Apache-2.0
// Measures what streaming costs the server: many clients receive a piece in each step, as from an
// engine. The goal is below 5% of the time for 256 streams.
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file_descriptor.h"
#include "serve/http/http_server.h"
#include "serve/http/router.h"

namespace spillway {
namespace {

const std::string kPiece =
    R"(data: {"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1700000000,)"
    R"("model":"smollm2","choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]})"
    "\n\n";

double cpu_seconds(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Starts a process that opens the streams and reads them to their end. It is a process of its own,
// so that its CPU time is not counted as the server's.
pid_t start_clients(uint16_t port, int count) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int poller = ::epoll_create1(0);
  const std::string request = "GET /stream HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n";
  for (int i = 0; i < count; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
      ::_exit(1);
    if (::send(fd, request.data(), request.size(), 0) < 0) ::_exit(1);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    ::epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
  }
  std::vector<char> buffer(64 << 10);
  std::vector<epoll_event> events(static_cast<size_t>(count));
  for (int open = count; open > 0;) {
    const int ready = ::epoll_wait(poller, events.data(), count, -1);
    for (int i = 0; i < ready; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (::recv(fd, buffer.data(), buffer.size(), 0) > 0) continue;
      ::close(fd);
      --open;
    }
  }
  ::_exit(0);
}

// Runs steps of `step_us`. In each one every stream gets a piece, all in one batch or each by
// itself.
void stream_steps(benchmark::State& state) {
  const int count = static_cast<int>(state.range(0));
  const bool batched = state.range(1) != 0;
  const auto step = std::chrono::microseconds(state.range(2));
  std::mutex mutex;
  std::vector<std::shared_ptr<HttpReply>> streams;
  std::atomic<int> gone = 0;
  Router router;
  router.add(HttpMethod::kGet, "/stream", Router::Access::kOpen, [&](const auto&, auto reply) {
    reply->begin_stream(200, "text/event-stream");
    reply->on_gone([&] { ++gone; });
    const std::lock_guard lock(mutex);
    streams.push_back(std::move(reply));
  });
  HttpServer server({}, router);
  const pid_t clients = start_clients(server.port(), count);
  while (true) {
    const std::lock_guard lock(mutex);
    if (streams.size() == static_cast<size_t>(count)) break;
  }
  StreamBatch batch;
  const double process_before = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
  const double own_before = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
  const HttpCounters counters_before = server.counters();
  double handing_over = 0;
  auto next = std::chrono::steady_clock::now();
  for (auto _ : state) {
    std::this_thread::sleep_until(next += step);
    const double start = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    for (const auto& stream : streams) {
      if (batched) {
        batch.write(*stream, kPiece);
      } else {
        stream->write(kPiece);
      }
    }
    if (batched) batch.hand_over();
    handing_over += cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - start;
  }
  SPW_CHECK(gone == 0, kIo, "{} clients were too slow", gone.load());
  for (const auto& stream : streams) stream->finish();
  SPW_CHECK(server.wait_until_answered(std::chrono::seconds(30)), kIo, "clients hang");
  const double io = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - process_before -
                    (cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - own_before);
  const HttpCounters counters = server.counters();
  ::waitpid(clients, nullptr, 0);
  const auto pieces = static_cast<double>(state.iterations()) * count;
  state.counters["io_us_per_piece"] = 1e6 * io / pieces;
  state.counters["engine_us_per_piece"] = 1e6 * handing_over / pieces;
  state.counters["io_percent"] =
      100 * io /
      (std::chrono::duration<double>(step).count() * static_cast<double>(state.iterations()));
  state.counters["writes_per_piece"] =
      static_cast<double>(counters.socket_writes - counters_before.socket_writes) / pieces;
  state.counters["wake_ups_per_step"] =
      static_cast<double>(counters.wake_ups - counters_before.wake_ups) /
      static_cast<double>(state.iterations());
  state.SetBytesProcessed(state.iterations() * count * static_cast<int64_t>(kPiece.size()));
}

// Measures what the system itself needs: the same bytes, sent by a loop that does nothing else.
void plain_sends(benchmark::State& state) {
  const int count = static_cast<int>(state.range(0));
  const auto step = std::chrono::microseconds(state.range(1));
  const FileDescriptor listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  SPW_CHECK(::bind(listener.get(), name, size) == 0 && ::listen(listener.get(), count) == 0 &&
                ::getsockname(listener.get(), name, &size) == 0,
            kIo, "cannot listen");
  const pid_t clients = start_clients(ntohs(address.sin_port), count);
  std::vector<FileDescriptor> streams;
  for (int i = 0; i < count; ++i) {
    streams.emplace_back(::accept(listener.get(), nullptr, nullptr));
    const int on = 1;
    ::setsockopt(streams.back().get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  // The piece is in a chunk, as the server sends it.
  const std::string piece = "b7\r\n" + kPiece + "\r\n";
  double sending = 0;
  auto next = std::chrono::steady_clock::now();
  for (auto _ : state) {
    std::this_thread::sleep_until(next += step);
    const double start = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    for (const FileDescriptor& stream : streams)
      benchmark::DoNotOptimize(
          ::send(stream.get(), piece.data(), piece.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    sending += cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - start;
  }
  // Because requests were not read, closing may reset the connections; the clients accept both.
  streams.clear();
  ::waitpid(clients, nullptr, 0);
  state.counters["send_us_per_piece"] =
      1e6 * sending / (static_cast<double>(state.iterations()) * count);
}

BENCHMARK(plain_sends)
    ->ArgNames({"streams", "step_us"})
    ->Args({256, 50'000})
    ->Args({256, 20'000})
    ->Args({16, 10'000})
    ->Iterations(100)
    ->UseRealTime();
BENCHMARK(stream_steps)
    ->ArgNames({"streams", "batched", "step_us"})
    ->Args({256, 1, 50'000})
    ->Args({256, 0, 50'000})
    ->Args({256, 1, 20'000})
    ->Args({16, 1, 10'000})
    ->Iterations(100)
    ->UseRealTime();

}  // namespace
}  // namespace spillway
