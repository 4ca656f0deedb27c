// SPDX-License-Identifier: Apache-2.0
// Streamed answers, and clients that leave or read slowly meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/test_scoped_folder.h"
#include "serve/http/http_server.h"
#include "serve/http/test_http_client.h"
#include "serve/http/test_http_handler.h"

namespace spillway {
namespace {

using std::chrono::milliseconds;

constexpr const char* kEvents = "text/event-stream";

// A client that waits for the answer to its request, and the handler's side of it.
struct Waiting {
  explicit Waiting(HttpServer& server, HoldingHandler& handler, int receive_bytes = 0,
                   const std::string& request = get("/"))
      : client(server.port(), receive_bytes) {
    client.send(request);
    reply = handler.next().reply;
    reply->on_gone([gone = gone] { ++*gone; });
  }
  bool is_gone_soon() const {
    return wait_for([&] { return gone->load() > 0; });
  }

  std::shared_ptr<std::atomic<int>> gone = std::make_shared<std::atomic<int>>(0);
  TestClient client;
  std::shared_ptr<HttpReply> reply;
};

// A reset may discard what the client has not read before it, so only complete answers count.
bool gets_all(TestClient& client) {
  const auto response = client.read_response();
  return response && response->is_whole;
}

TEST(HttpStreamTest, PiecesArriveWhileMoreAreToCome) {
  HoldingHandler handler;
  HttpServer server({}, handler);
  Waiting one(server, handler);
  EXPECT_TRUE(one.reply->begin_stream(200, kEvents, {{"Cache-Control", "no-store"}}));
  const TestResponse head = one.client.read_head();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-type"), kEvents);
  EXPECT_EQ(head.headers.at("transfer-encoding"), "chunked");
  EXPECT_EQ(head.headers.at("cache-control"), "no-store");
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(one.reply->write("data: " + std::to_string(i) + "\n\n"));
    EXPECT_TRUE(one.reply->write("")) << "would end the stream if it were sent";
    EXPECT_EQ(one.client.read_chunk(), "data: " + std::to_string(i) + "\n\n");
  }
  EXPECT_TRUE(one.reply->finish());
  EXPECT_EQ(one.client.read_chunk(), "");
  EXPECT_TRUE(wait_for([&] { return server.counters().open_replies == 0; }));
  // The connection takes another request.
  one.client.send(get("/again"));
  handler.next().reply->send({200, "text/plain", "again", {}});
  EXPECT_EQ(one.client.read_response()->body, "again");
  EXPECT_EQ(*one.gone, 0);
}

TEST(HttpStreamTest, KeepsTheOrderOfManyThreads) {
  HoldingHandler handler;
  HttpOptions options;
  options.io_threads = 2;
  HttpServer server(options, handler);
  constexpr int kStreams = 16;
  constexpr int kPieces = 500;
  std::vector<std::unique_ptr<Waiting>> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(std::make_unique<Waiting>(server, handler));
  std::vector<std::thread> writers;
  for (auto& stream : streams) {
    writers.emplace_back([&] {
      stream->reply->begin_stream(200, kEvents);
      for (int i = 0; i < kPieces; ++i) stream->reply->write(std::to_string(i) + " ");
      stream->reply->finish();
    });
  }
  std::string expected;
  for (int i = 0; i < kPieces; ++i) expected += std::to_string(i) + " ";
  for (auto& stream : streams) {
    const auto response = stream->client.read_response();
    ASSERT_TRUE(response);
    EXPECT_TRUE(response->is_whole);
    EXPECT_EQ(response->body, expected);
  }
  for (std::thread& writer : writers) writer.join();
}

TEST(HttpStreamTest, WritesOnceForManyPieces) {
  HoldingHandler handler;
  HttpServer server({}, handler);
  Waiting one(server, handler);
  one.reply->begin_stream(200, kEvents);
  one.client.read_head();
  const HttpCounters before = server.counters();
  StreamBatch batch;
  std::string expected;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(batch.write(*one.reply, "piece " + std::to_string(i)));
    expected += "piece " + std::to_string(i);
  }
  EXPECT_TRUE(batch.finish(*one.reply));
  EXPECT_TRUE(one.client.is_quiet(milliseconds(20))) << "nothing before it is handed over";
  batch.hand_over();
  std::string got;
  while (auto chunk = one.client.read_chunk()) {
    if (chunk->empty()) break;
    got += *chunk;
  }
  EXPECT_EQ(got, expected);
  const HttpCounters after = server.counters();
  EXPECT_EQ(after.wake_ups, before.wake_ups + 1);
  EXPECT_EQ(after.socket_writes, before.socket_writes + 1);
  EXPECT_EQ(error_of([&] { batch.write(*one.reply, "more"); }), "a chunk outside of a stream");
}

TEST(HttpStreamTest, WakesOnceForManyStreams) {
  HoldingHandler handler;
  HttpServer server({}, handler);
  std::vector<std::unique_ptr<Waiting>> streams;
  for (int i = 0; i < 64; ++i) {
    streams.push_back(std::make_unique<Waiting>(server, handler));
    streams.back()->reply->begin_stream(200, kEvents);
    streams.back()->client.read_head();
  }
  StreamBatch batch;
  const HttpCounters before = server.counters();
  for (int step = 0; step < 10; ++step) {
    for (auto& stream : streams) batch.write(*stream->reply, "data: token\n\n");
    batch.hand_over();
    for (auto& stream : streams) EXPECT_EQ(stream->client.read_chunk(), "data: token\n\n");
  }
  EXPECT_EQ(server.counters().wake_ups, before.wake_ups + 10);
  EXPECT_EQ(server.counters().socket_writes, before.socket_writes + 640);
}

TEST(HttpStreamTest, TellsWhenTheClientCloses) {
  HoldingHandler handler;
  HttpServer server({}, handler);
  for (const bool has_begun : {false, true}) {
    for (int how = 0; how < 2; ++how) {
      Waiting one(server, handler);
      if (has_begun) {
        one.reply->begin_stream(200, kEvents);
        one.client.read_head();
      }
      if (how == 0) one.client.close();
      if (how == 1) one.client.reset();
      EXPECT_TRUE(one.is_gone_soon()) << "nothing is being written; way " << how;
      EXPECT_TRUE(one.reply->is_gone());
      if (!has_begun) {
        EXPECT_FALSE(one.reply->begin_stream(200, kEvents));
      }
      EXPECT_FALSE(one.reply->write("x"));
      EXPECT_FALSE(one.reply->finish());
      EXPECT_EQ(*one.gone, 1);
    }
  }
  EXPECT_TRUE(wait_for([&] { return server.counters().open_connections == 0; }));
  EXPECT_EQ(server.counters().open_replies, 0U);
}

TEST(HttpStreamTest, TellsOfClientsThatWereGoneBefore) {
  HoldingHandler handler;
  HttpServer server({}, handler);
  TestClient client(server.port());
  client.send(get("/"));
  const auto reply = handler.next().reply;
  client.close();
  EXPECT_TRUE(wait_for([&] { return reply->is_gone(); }));
  EXPECT_TRUE(wait_for([&] { return server.counters().open_connections == 0; }));
  int calls = 0;
  reply->on_gone([&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(HttpStreamTest, AnswersThatAreCompleteReachClientsThatOnlyListen) {
  EchoHandler handler;
  HttpServer server({}, handler);
  TestClient client(server.port());
  client.send(get("/quick"));
  client.close_own_direction();
  const auto response = client.read_final_response();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->body, "GET /quick|");
  EXPECT_TRUE(client.is_closed_by_peer());
}

TEST(HttpStreamTest, ClientsThatOnlyListenGetAnswersThatTakeTime) {
  HoldingHandler handler;
  HttpServer server({}, handler);
  {
    Waiting one(server, handler);
    one.client.close_own_direction();
    EXPECT_EQ(one.client.read_response()->status, 100) << "an interim one, to see who is there";
    EXPECT_TRUE(one.client.is_quiet(milliseconds(150)));
    EXPECT_EQ(*one.gone, 0);
    one.reply->send({200, "text/plain", "late", {}});
    const auto response = one.client.read_response();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->body, "late");
    EXPECT_EQ(response->headers.at("connection"), "close");
    EXPECT_TRUE(one.client.is_closed_by_peer());
  }
  {
    Waiting old(server, handler, 0, "GET / HTTP/1.0\r\n\r\n");
    old.client.close_own_direction();
    EXPECT_TRUE(old.client.is_quiet(milliseconds(50))) << "it knows nothing of interim answers";
    old.reply->send({200, "text/plain", "late", {}});
    EXPECT_EQ(old.client.read_response()->body, "late");
  }
  EXPECT_TRUE(wait_for([&] { return server.counters().open_connections == 0; }));
}

TEST(HttpStreamTest, ClientsThatOnlyListenGetWholeStreams) {
  HoldingHandler handler;
  HttpServer server({}, handler);
  for (const bool has_more : {false, true}) {
    Waiting one(server, handler);
    one.reply->begin_stream(200, kEvents);
    EXPECT_EQ(one.client.read_head().status, 200);
    one.client.close_own_direction();
    std::this_thread::sleep_for(milliseconds(100));
    EXPECT_EQ(*one.gone, 0);
    if (has_more) {
      for (const char* const piece : {"data: a\n\n", "data: b\n\n"}) {
        EXPECT_TRUE(one.reply->write(piece));
        EXPECT_EQ(one.client.read_chunk(), piece);
      }
    }
    EXPECT_TRUE(one.reply->finish());
    EXPECT_EQ(one.client.read_chunk(), "") << "the last chunk";
    EXPECT_TRUE(one.client.is_closed_by_peer());
  }
}

TEST(HttpStreamTest, AllThatAClientSentBeforeItOnlyListensIsAnswered) {
  EchoHandler handler;
  HttpServer server({}, handler);
  TestClient client(server.port());
  std::string all;
  for (int i = 0; i < 20; ++i) all += get("/" + std::to_string(i));
  client.send(all + "GET /half");
  client.close_own_direction();
  for (int i = 0; i < 20; ++i) {
    const auto response = client.read_final_response();
    ASSERT_TRUE(response) << i;
    EXPECT_EQ(response->body, "GET /" + std::to_string(i) + "|");
  }
  EXPECT_FALSE(client.read_response());
  EXPECT_TRUE(client.is_closed_by_peer());
}

TEST(HttpStreamTest, NoticesThatAClientLeavesBehindPipelinedRequests) {
  HoldingHandler handler;
  HttpServer server({}, handler);
  // The bytes are kept; kept because one read brings them; partly unread; mostly unread. In the
  // last case nothing is noticed before a write.
  for (const size_t bytes : {size_t{10}, size_t{40} << 10, size_t{100} << 10, size_t{4} << 20}) {
    Waiting one(server, handler);
    one.client.send_without_waiting(std::string(bytes, 'x'));
    std::this_thread::sleep_for(milliseconds(20));
    one.client.close();
    if (bytes > 1 << 20) {
      one.reply->begin_stream(200, kEvents);
      EXPECT_TRUE(wait_for([&] { return !one.reply->write("data: x\n\n"); }));
    }
    EXPECT_TRUE(one.is_gone_soon()) << bytes;
  }
}

TEST(HttpStreamTest, LosesNoPipelinedRequest) {
  HoldingHandler handler;
  HttpServer server({}, handler);
  Waiting one(server, handler);
  // This is far more than is kept while the first request is being answered.
  const std::string body(100 << 10, 'b');
  std::thread sender([&] {
    for (int i = 0; i < 10; ++i) one.client.send(post("/" + std::to_string(i), body));
  });
  std::this_thread::sleep_for(milliseconds(20));
  one.reply->send({200, "text/plain", "first", {}});
  EXPECT_EQ(one.client.read_response()->body, "first");
  for (int i = 0; i < 10; ++i) {
    const HeldRequest held = handler.next();
    ASSERT_NE(held.reply, nullptr);
    EXPECT_EQ(held.request->path, "/" + std::to_string(i));
    EXPECT_EQ(held.request->body, body);
    held.reply->send({200, "text/plain", "ok", {}});
    EXPECT_EQ(one.client.read_response()->status, 200);
  }
  sender.join();
  EXPECT_EQ(*one.gone, 0);
}

TEST(HttpStreamTest, CutsReadersThatAreTooFarBehind) {
  HoldingHandler handler;
  HttpOptions options;
  options.most_stream_bytes = 100'000;
  options.send_buffer_bytes = 8 << 10;
  HttpServer server(options, handler);
  Waiting slow(server, handler, 4 << 10);
  Waiting fast(server, handler);
  std::atomic<size_t> received = 0;
  std::thread reader([&] {
    fast.client.read_head();
    while (const auto chunk = fast.client.read_chunk()) {
      if (chunk->empty()) return;
      received += chunk->size();
    }
    ADD_FAILURE() << "the stream was cut";
  });
  fast.reply->begin_stream(200, kEvents);
  slow.reply->begin_stream(200, kEvents);
  const std::string piece(1000, 'p');
  size_t taken = 0;
  while (taken < 10'000'000 && slow.reply->write(piece)) taken += piece.size();
  EXPECT_LT(taken, 500'000U) << "what was allowed, and what the system keeps";
  EXPECT_GE(taken, 99'000U);
  EXPECT_TRUE(slow.is_gone_soon());
  EXPECT_FALSE(slow.reply->write(piece));
  EXPECT_EQ(server.counters().cut_streams, 1U);
  EXPECT_FALSE(gets_all(slow.client));
  // A client that reads gets everything, however much that is.
  bool is_taken = true;
  for (size_t sent = 0; sent < 4'000'000 && is_taken; sent += piece.size()) {
    is_taken = wait_for([&] { return received + 20'000 >= sent; }) && fast.reply->write(piece);
  }
  EXPECT_TRUE(is_taken);
  fast.reply->finish();
  reader.join();
  EXPECT_EQ(received, 4'000'000U);
  EXPECT_EQ(*slow.gone, 1);
  EXPECT_EQ(*fast.gone, 0);
}

TEST(HttpStreamTest, CutsNoClientForOneLargePiece) {
  HoldingHandler handler;
  HttpOptions options;
  options.most_stream_bytes = 100'000;
  options.send_buffer_bytes = 8 << 10;
  HttpServer server(options, handler);
  const std::string large(3'000'000, 'L'), piece(1000, 'p');
  Waiting slow(server, handler, 4 << 10), patient(server, handler, 4 << 10);
  for (Waiting* const one : {&slow, &patient}) {
    one->reply->begin_stream(200, kEvents);
    ASSERT_TRUE(one->reply->write(piece));
    ASSERT_TRUE(one->reply->write(large));
    for (int i = 0; i < 90; ++i) ASSERT_TRUE(one->reply->write(piece)) << "not its fault";
  }
  // Other chunks than the large one are bounded as ever.
  size_t taken = 0;
  while (taken < 10'000'000 && slow.reply->write(piece)) taken += piece.size();
  EXPECT_LT(taken, 500'000U);
  EXPECT_TRUE(slow.is_gone_soon());
  patient.reply->finish();
  const auto response = patient.client.read_response();
  ASSERT_TRUE(response && response->is_whole);
  EXPECT_EQ(response->body.size(), large.size() + 91 * piece.size());
  EXPECT_EQ(server.counters().cut_streams, 1U);
}

TEST(HttpStreamTest, AHundredCrawlersCostNothing) {
  HoldingHandler handler;
  HttpOptions options;
  options.most_stream_bytes = 64 << 10;
  options.send_buffer_bytes = 8 << 10;
  HttpServer server(options, handler);
  std::vector<std::unique_ptr<Waiting>> crawlers;
  for (int i = 0; i < 100; ++i) {
    crawlers.push_back(std::make_unique<Waiting>(server, handler, 4 << 10));
    crawlers.back()->reply->begin_stream(200, kEvents);
  }
  StreamBatch batch;
  const std::string piece(2000, 'p');
  for (int step = 0; step < 200; ++step) {
    for (auto& crawler : crawlers) {
      batch.write(*crawler->reply, piece);
      if (step % 50 == 0) crawler->client.read_some(1);
    }
    batch.hand_over();
  }
  for (auto& crawler : crawlers) EXPECT_TRUE(crawler->is_gone_soon());
  EXPECT_TRUE(wait_for([&] { return server.counters().open_connections == 0; }));
  EXPECT_EQ(server.counters().open_replies, 0U);
  EXPECT_EQ(server.counters().cut_streams, 100U);
}

TEST(HttpStreamTest, CutsReadersThatStop) {
  HoldingHandler handler;
  HttpOptions options;
  options.write_timeout = milliseconds(150);
  options.send_buffer_bytes = 8 << 10;
  HttpServer server(options, handler);
  // One client gets a whole answer, the other a stream below the limit.
  Waiting whole(server, handler, 4 << 10);
  whole.reply->send({200, "text/plain", std::string(4 << 20, 'w'), {}});
  Waiting pieces(server, handler, 4 << 10);
  pieces.reply->begin_stream(200, kEvents);
  pieces.reply->write(std::string(900'000, 'p'));
  EXPECT_TRUE(pieces.is_gone_soon());
  EXPECT_TRUE(wait_for([&] { return server.counters().open_connections == 0; }));
  EXPECT_FALSE(gets_all(whole.client));
  EXPECT_EQ(*whole.gone, 0) << "its answer was complete";
}

TEST(HttpStreamTest, ReadersThatAreSlowButSteadyGetLargeAnswers) {
  HoldingHandler handler;
  HttpOptions options;
  options.send_buffer_bytes = 16 << 10;
  HttpServer server(options, handler);
  Waiting one(server, handler, 8 << 10);
  const std::string body(8 << 20, 'w');
  one.reply->send({200, "text/plain", body, {}});
  const auto response = one.client.read_response();
  ASSERT_TRUE(response);
  EXPECT_TRUE(response->is_whole);
  EXPECT_EQ(response->body, body);
}

TEST(HttpStreamTest, HalfAnAnswerDoesNotLookWhole) {
  HoldingHandler handler;
  HttpServer server({}, handler);
  Waiting one(server, handler);
  one.reply->begin_stream(200, kEvents);
  one.reply->write("half");
  one.reply.reset();
  const auto response = one.client.read_response();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->body, "half");
  EXPECT_FALSE(response->is_whole);
  EXPECT_EQ(*one.gone, 0);
}

TEST(HttpStreamTest, StreamsToHttp10UntilTheEndOfTheConnection) {
  HoldingHandler handler;
  HttpServer server({}, handler);
  Waiting one(server, handler, 0, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  one.reply->begin_stream(200, kEvents);
  one.reply->write("a");
  one.reply->write("b");
  one.reply->finish();
  const auto response = one.client.read_response();
  ASSERT_TRUE(response);
  EXPECT_FALSE(response->headers.contains("transfer-encoding"));
  EXPECT_EQ(response->headers.at("connection"), "close");
  EXPECT_EQ(response->body, "ab");
}

TEST(HttpStreamTest, StreamsNothingToHead) {
  HoldingHandler handler;
  HttpOptions options;
  options.most_stream_bytes = 1000;
  HttpServer server(options, handler);
  Waiting one(server, handler, 0, "HEAD / HTTP/1.1\r\nHost: t\r\n\r\n");
  one.reply->begin_stream(200, kEvents);
  EXPECT_EQ(one.client.read_response(true)->status, 200);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(one.reply->write(std::string(500, 'x')));
    std::this_thread::sleep_for(milliseconds(2));
  }
  one.reply->finish();
  one.client.send(get("/next"));
  handler.next().reply->send({200, "text/plain", "next", {}});
  EXPECT_EQ(one.client.read_response()->body, "next");
}

TEST(HttpStreamTest, EndsWhileManyWrite) {
  HoldingHandler handler;
  auto server = std::make_unique<HttpServer>(HttpOptions{}, handler);
  std::vector<std::unique_ptr<Waiting>> streams;
  for (int i = 0; i < 8; ++i) {
    streams.push_back(std::make_unique<Waiting>(*server, handler));
    streams.back()->reply->begin_stream(200, kEvents);
  }
  std::vector<std::thread> writers;
  for (auto& stream : streams) {
    writers.emplace_back([&] {
      while (stream->reply->write("x")) std::this_thread::yield();
    });
  }
  std::this_thread::sleep_for(milliseconds(20));
  server.reset();
  for (std::thread& writer : writers) writer.join();
  for (auto& stream : streams) EXPECT_EQ(*stream->gone, 1);
}

TEST(HttpStreamTest, AThousandClientsThatVanishLeaveNothing) {
  HoldingHandler handler;
  HttpServer server({}, handler);
  for (int i = 0; i < 1000; ++i) {
    Waiting one(server, handler);
    one.reply->begin_stream(200, kEvents);
    one.reply->write("data: x\n\n");
    if (i % 3 == 0) one.client.read_some(10);
    if (i % 2 == 0) {
      one.client.reset();
    } else {
      one.client.close();
    }
    ASSERT_TRUE(one.is_gone_soon());
  }
  EXPECT_TRUE(wait_for([&] { return server.counters().open_connections == 0; }));
  EXPECT_EQ(server.counters().open_replies, 0U);
}

}  // namespace
}  // namespace spillway
