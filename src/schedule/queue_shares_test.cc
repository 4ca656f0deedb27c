// SPDX-License-Identifier: Apache-2.0
#include "schedule/queue_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace spillway {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// Numbers the members and remembers which were refused.
class QueueSharesTest : public testing::Test {
 protected:
  std::optional<QueueShares::Admission> admit(uint64_t client, int members = 1) {
    std::vector<RequestId> ids;
    for (int i = 0; i < members; ++i) ids.push_back(RequestId{++last_});
    return shares_.try_admit(client, ids);
  }
  // Plays an engine that gives the displaced member back immediately.
  std::optional<QueueShares::Admission> admit_and_withdraw(uint64_t client, int members = 1) {
    const auto admission = admit(client, members);
    if (admission && admission->displaced) refused_ = shares_.withdrawn(*admission->displaced);
    return admission;
  }

  QueueShares shares_{20};
  uint64_t last_ = 0;
  std::vector<RequestId> refused_;
};

TEST_F(QueueSharesTest, AClientAloneMayHaveAllPlaces) {
  for (int i = 0; i < 20; ++i) ASSERT_THAT(admit(1)->placed, SizeIs(1));
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(admit(1).has_value());
  shares_.end(RequestId{7});
  EXPECT_TRUE(admit(1).has_value());
  EXPECT_FALSE(admit(1).has_value());
}

TEST_F(QueueSharesTest, TheFullestClientGivesRoomUntilSharesAreEqual) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(admit(1).has_value());
  for (uint64_t i = 1; i <= 4; ++i) shares_.begin(RequestId{i});
  for (int i = 0; i < 10; ++i) {
    const auto admission = admit_and_withdraw(2);
    ASSERT_TRUE(admission.has_value()) << i;
    EXPECT_EQ(admission->displaced, RequestId(20 - static_cast<uint64_t>(i))) << "newest first";
    EXPECT_THAT(refused_, ElementsAre(*admission->displaced));
  }
  EXPECT_FALSE(admit(2).has_value()) << "ten and ten";
  EXPECT_FALSE(admit(1).has_value());
  // A third client displaces members of both, but only until it has as many places as they.
  int taken = 0;
  while (admit_and_withdraw(3)) ++taken;
  EXPECT_EQ(taken, 6);
}

TEST_F(QueueSharesTest, WhatHasBegunIsNeverDisplaced) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(admit(1).has_value());
  for (uint64_t i = 1; i <= 19; ++i) shares_.begin(RequestId{i});
  EXPECT_EQ(admit_and_withdraw(2)->displaced, RequestId{20});
  EXPECT_FALSE(admit(2).has_value());
  EXPECT_FALSE(admit(3).has_value());
}

TEST_F(QueueSharesTest, ALargeRequestTakesHalfOfThePlacesAndIsFedAsTheyComeFree) {
  EXPECT_THAT(admit(1, 300)->placed, SizeIs(10));
  for (int i = 0; i < 10; ++i) ASSERT_THAT(admit(1)->placed, SizeIs(1)) << "others of its client";
  EXPECT_THAT(shares_.fill(), IsEmpty());
  for (uint64_t i = 1; i <= 290; ++i) {
    shares_.begin(RequestId{i});
    shares_.end(RequestId{i});
    ASSERT_THAT(shares_.fill(), ElementsAre(RequestId{i + 10}));
  }
  for (uint64_t i = 291; i <= 300; ++i) {
    shares_.end(RequestId{i});
    EXPECT_THAT(shares_.fill(), IsEmpty());
  }
}

TEST_F(QueueSharesTest, ALargeRequestTakesNoMoreThanItsClientsShare) {
  for (uint64_t client = 1; client <= 4; ++client) ASSERT_TRUE(admit(client).has_value());
  EXPECT_THAT(admit(5, 300)->placed, SizeIs(4)) << "a fifth of the places";
  EXPECT_THAT(admit(5, 300)->placed, SizeIs(1)) << "each request has one";
}

TEST_F(QueueSharesTest, MembersOfLargeRequestsAreDisplacedFirstAndNotRefused) {
  ASSERT_THAT(admit(1, 100)->placed, SizeIs(10));
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(admit(1).has_value());
  // Displaces members for other clients and for the same one.
  for (const uint64_t client : {2, 1, 3, 1}) {
    const auto admission = admit_and_withdraw(client);
    ASSERT_TRUE(admission.has_value());
    EXPECT_LE(*admission->displaced, RequestId{10});
    EXPECT_THAT(refused_, IsEmpty());
  }
  // The large request keeps one place, and small requests of its client displace no
  // request's last place.
  while (admit_and_withdraw(1)) EXPECT_THAT(refused_, IsEmpty());
  shares_.end(RequestId{1});
  EXPECT_THAT(shares_.fill(), SizeIs(1)) << "the last place goes to its next member";
}

TEST_F(QueueSharesTest, AMemberThatHasBegunMeanwhileKeepsItsPlace) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(admit(1).has_value());
  ASSERT_EQ(admit(2)->displaced, RequestId{20});
  shares_.restore(RequestId{20});
  // There are twenty-one members with places now: two must end before the next one gets a place
  // without displacing another.
  shares_.end(RequestId{1});
  EXPECT_FALSE(admit(1).has_value());
  shares_.end(RequestId{2});
  EXPECT_TRUE(admit(1).has_value());
}

TEST_F(QueueSharesTest, ARequestIsRefusedAsAWholeWhenItsLastPlaceGoes) {
  QueueShares two(2);
  const std::vector<RequestId> ids = {RequestId{1}, RequestId{2}, RequestId{3}};
  ASSERT_THAT(two.try_admit(1, std::span(ids).first(1))->placed, SizeIs(1));
  two.begin(RequestId{1});
  ASSERT_THAT(two.try_admit(1, std::span(ids).subspan(1))->placed, ElementsAre(RequestId{2}));
  const std::vector<RequestId> other = {RequestId{4}};
  ASSERT_EQ(two.try_admit(2, other)->displaced, RequestId{2});
  EXPECT_THAT(two.fill(), IsEmpty()) << "nothing is decided yet";
  EXPECT_THAT(two.withdrawn(RequestId{2}), ElementsAre(RequestId{2}, RequestId{3}));
  two.end(RequestId{1});
  EXPECT_THAT(two.fill(), IsEmpty());
}

TEST_F(QueueSharesTest, WhereTwoPlacesOfARequestGoOneThatHasBegunSavesBoth) {
  QueueShares four(4);
  std::vector<RequestId> ids;
  for (uint64_t i = 1; i <= 6; ++i) ids.push_back(RequestId{i});
  ASSERT_THAT(four.try_admit(1, std::span(ids).first(2))->placed, SizeIs(2));
  ASSERT_THAT(four.try_admit(1, std::span(ids).subspan(2, 1))->placed, SizeIs(1));
  ASSERT_THAT(four.try_admit(1, std::span(ids).subspan(3, 1))->placed, SizeIs(1));
  four.begin(RequestId{3});
  four.begin(RequestId{4});
  ASSERT_EQ(four.try_admit(2, std::span(ids).subspan(4, 1))->displaced, RequestId{2});
  ASSERT_EQ(four.try_admit(3, std::span(ids).subspan(5, 1))->displaced, RequestId{1});
  EXPECT_THAT(four.withdrawn(RequestId{2}), IsEmpty());
  four.restore(RequestId{1});
  four.end(RequestId{1});
  EXPECT_THAT(four.fill(), IsEmpty()) << "there was one more than there are places";
  four.end(RequestId{3});
  EXPECT_THAT(four.fill(), ElementsAre(RequestId{2})) << "before all others";
}

// With random clients, sizes, ends and delays of the engine, each member must get a place at most
// once at a time and end once, places must never be exceeded except by what restore() gives back,
// and a client that holds nothing must get in while another holds two places that have not begun.
TEST_F(QueueSharesTest, HoldsUnderRandomLoad) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
    const int places = 1 + static_cast<int>(below(24));
    QueueShares shares(places);
    std::map<RequestId, uint64_t> clients;  // for members that have not ended
    // The request of each member, named by its first member.
    std::map<RequestId, uint64_t> requests;
    std::set<uint64_t> progressed;
    std::set<RequestId> engine, begun;
    std::vector<RequestId> displaced;
    uint64_t next = 1;
    size_t restored = 0;
    const auto place = [&](const std::vector<RequestId>& ids) {
      for (const RequestId id : ids) EXPECT_TRUE(engine.insert(id).second);
    };
    const auto resolve_displaced = [&] {
      for (const RequestId id : displaced) {
        if (!engine.contains(id)) continue;  // it has ended
        if (begun.contains(id)) {
          shares.restore(id);
          ++restored;
          continue;
        }
        engine.erase(id);
        for (const RequestId refused : shares.withdrawn(id)) {
          EXPECT_FALSE(begun.contains(refused) || engine.contains(refused));
          EXPECT_EQ(clients.erase(refused), 1U);
        }
      }
      displaced.clear();
      place(shares.fill());
    };
    const auto end = [&](RequestId id) {
      engine.erase(id);
      begun.erase(id);
      EXPECT_EQ(clients.erase(id), 1U);
      shares.end(id);
    };
    for (int step = 0; step < 400; ++step) {
      const uint64_t client = 1 + below(4);
      std::vector<RequestId> ids;
      const size_t members = below(5) == 0 ? 1 + below(40) : 1;
      for (size_t n = 0; n < members; ++n) ids.push_back(RequestId{next++});
      std::map<uint64_t, int> held, placed;
      const auto has_place = [&](RequestId id) { return std::ranges::count(displaced, id) == 0; };
      for (const RequestId id : engine) {
        held[clients.at(id)] += has_place(id) ? 1 : 0;
        placed[requests.at(id)] += has_place(id) ? 1 : 0;
      }
      const bool entitled = std::ranges::any_of(engine, [&](RequestId id) {
        const uint64_t request = requests.at(id), other = clients.at(id);
        return has_place(id) && !begun.contains(id) && other != client && held[client] == 0 &&
               held[other] >= 2 && (placed[request] >= 2 || !progressed.contains(request));
      });
      if (const auto admission = shares.try_admit(client, ids)) {
        for (const RequestId id : ids) {
          clients[id] = client;
          requests[id] = static_cast<uint64_t>(ids.front());
        }
        if (admission->displaced) displaced.push_back(*admission->displaced);
        place(admission->placed);
      } else {
        EXPECT_FALSE(entitled) << seed << " " << step;
      }
      if (below(3) == 0) resolve_displaced();
      for (const RequestId id : std::vector(engine.begin(), engine.end())) {
        if (below(8) > 0) continue;
        begun.insert(id);
        progressed.insert(requests.at(id));
        if (std::ranges::count(displaced, id) == 0) shares.begin(id);
      }
      for (const RequestId id : std::vector(begun.begin(), begun.end()))
        if (below(4) == 0) end(id);
      for (const auto& [id, of] : std::map(clients))  // cancelled while it waits outside
        if (below(200) == 0 && !engine.contains(id)) end(id);
      place(shares.fill());
      EXPECT_LE(engine.size(), static_cast<size_t>(places) + displaced.size() + restored);
    }
    resolve_displaced();
    while (!engine.empty()) {
      end(*engine.begin());
      place(shares.fill());
    }
    EXPECT_THAT(clients, IsEmpty()) << "all that was taken has ended: seed " << seed;
  }
}

}  // namespace
}  // namespace spillway
