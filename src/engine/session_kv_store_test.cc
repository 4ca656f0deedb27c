// SPDX-License-Identifier: Apache-2.0
// Tests which sessions may use each other's KV, and where the stores keep it.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "base/error.h"
#include "base/fault_points.h"
#include "base/test_scoped_folder.h"
#include "engine/session.h"
#include "tests/test_devices.h"

namespace spillway {
namespace {

class SessionKvStoreTest : public testing::Test {
 protected:
  SessionKvStoreTest() : folder_(std::filesystem::temp_directory_path()) {
    options_.model = "dummy:smollm2-135m:q4_0";
    options_.device = "cpu";
    options_.tuning.off = true;
  }
  ~SessionKvStoreTest() override { disarm_faults(); }

  std::unique_ptr<Session> plan(const SessionOptions& options) {
    auto session = std::make_unique<Session>(options, SessionServices{.devices = devices_});
    session->choose_plan({.tokens = 256});
    return session;
  }
  static KvCache cache_of(Session& session) {
    return KvCache(*session.device, KvGroupShape{.layers = 2, .kv_heads = 1, .head_dim = 16}, 4);
  }

  ScopedFolder folder_;
  TestDevices devices_;
  SessionOptions options_;
};

TEST_F(SessionKvStoreTest, TheSaltChangesWithAllThatChangesBits) {
  std::set<std::string> salts;
  const auto add = [&](auto change) {
    SessionOptions options = options_;
    change(options);
    salts.insert(plan(options)->kv_salt());
  };
  add([](SessionOptions&) {});
  add([](SessionOptions& of) { of.deterministic = true; });
  add([](SessionOptions& of) { of.compute.kv_type = "int8"; });
  add([](SessionOptions& of) { of.compute.attention_topk = 0.5; });
  add([](SessionOptions& of) { of.model = "dummy:smollm2-135m:q8_0"; });
  EXPECT_EQ(salts.size(), 5U);
  // The chunk size and the place of the store change no bits.
  add([](SessionOptions& of) { of.compute.chunk = 64; });
  add([&](SessionOptions& of) { of.kv_store.dir = folder_.path(); });
  EXPECT_EQ(salts.size(), 5U);
}

TEST_F(SessionKvStoreTest, AFolderKeepsItsUsualSizeAtEveryRestart) {
  constexpr uint64_t kFree = uint64_t{10} << 30;
  uint64_t taken = 0;
  const uint64_t first = KvStoreOptions::usual_dir_bytes(kFree, 0);
  for (int restart = 0; restart < 3; ++restart) {
    EXPECT_EQ(KvStoreOptions::usual_dir_bytes(kFree - taken, taken), first);
    taken = first;
  }
  EXPECT_EQ(first, kFree / 2);
  EXPECT_EQ(KvStoreOptions::usual_dir_bytes(kFree * 10, 0), uint64_t{16} << 30);
}

TEST_F(SessionKvStoreTest, ThereIsNoneUnlessRequested) {
  const auto session = plan(options_);
  const KvCache kv = cache_of(*session);
  EXPECT_TRUE(session->make_kv_stores(kv, 256).empty());
  EXPECT_TRUE(session->make_kv_stores(kv, 256, Session::KvStoreHost::kWhereDiscrete).empty())
      << "on a CPU the pool is in host memory itself";
}

TEST_F(SessionKvStoreTest, AnAcceleratorHasOneInHostMemory) {
  options_.device = "emulated";
  const auto session = plan(options_);
  const KvCache kv = cache_of(*session);
  EXPECT_TRUE(session->make_kv_stores(kv, 256).empty());
  const auto stores = session->make_kv_stores(kv, 256, Session::KvStoreHost::kWhereDiscrete);
  ASSERT_EQ(stores.size(), 1u);
  EXPECT_FALSE(stores[0]->lasts());
}

// Running out of memory is an answer, not an end: the stores' allocations are refused, first one,
// then all.
TEST_F(SessionKvStoreTest, GoesWithoutMemoryThatIsRefused) {
  options_.kv_store.dir = folder_.path();
  const auto session = plan(options_);
  const KvCache kv = cache_of(*session);
  arm_fault("alloc.host", 1, FaultKind::kEnomem);
  EXPECT_FALSE(session->make_kv_stores(kv, 256).empty()) << "half of it will do";
  disarm_faults();
  arm_fault("alloc.host", 1, FaultKind::kEnomem, 1000);
  EXPECT_TRUE(session->make_kv_stores(kv, 256).empty());
  disarm_faults();
  const auto stores = session->make_kv_stores(kv, 256);
  ASSERT_EQ(stores.size(), 1u) << "the folder's lock was given back";
  EXPECT_TRUE(stores[0]->lasts());
  EXPECT_TRUE(session->make_kv_stores(kv, 256).empty()) << "another one has it";
}

}  // namespace
}  // namespace spillway
