// SPDX-License-Identifier: Apache-2.0
// Shares the places of a bounded queue among clients.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "schedule/request_id.h"

namespace spillway {

// A place holds one sequence that the engine runs or keeps waiting. A request (one HTTP body) has a
// member for each prompt and choice. The policy:
// - A free place goes to any client that asks; a client alone may hold all of them.
// - A request holds at least one place until its last member has ended, or gets the next one that
//   comes free, and at most half of all places. A request with several members gets its second and
//   later places only while its client holds less than places / clients. The other members wait
//   outside the queue, and get places as they come free, those of the client with the fewest places
//   first.
// - When no place is free, a request displaces the newest member that has not begun, of the client
//   that holds the most places, if that client holds at least two more than the request's own.
//   Members of requests with several places go first: they wait outside again. A request that had a
//   single place and had begun nothing is refused. Requests of one client displace each other only
//   where that refuses none of them.
// The engine learns of displaced members later than this class: one that has begun meanwhile keeps
// its place (restore()), so that for a moment there may be more members than places.
// Not thread-safe.
class QueueShares {
 public:
  // There must be at least one place.
  explicit QueueShares(int places);

  struct Admission {
    std::vector<RequestId> placed;       // the engine gets these now; other members wait outside
    std::optional<RequestId> displaced;  // the engine gives this one back
  };
  // Takes a request with these members (at least one) as a whole, or refuses it (nullopt).
  [[nodiscard]] std::optional<Admission> try_admit(uint64_t client,
                                                   std::span<const RequestId> members);

  // Called when the engine has begun to compute a member; unknown ids are ignored.
  void begin(RequestId id);
  // Called when a member has ended, in the engine or outside; unknown ids are ignored.
  void end(RequestId id);
  // Called when the engine has given a displaced member back. Returns the members that are now
  // refused, which are all of the request's, or none if it waits outside.
  std::vector<RequestId> withdrawn(RequestId id);
  // Called instead of withdrawn() if the engine had begun a displaced member, which continues.
  void restore(RequestId id);
  // Gives places that are free now to members from outside, and returns these.
  std::vector<RequestId> fill();

 private:
  enum class State : uint8_t { kOutside, kQueued, kBegun, kDisplaced };
  struct Member {
    uint64_t request = 0;
    State state = State::kOutside;
  };
  struct Request {
    uint64_t client = 0;
    int places = 0;
    bool has_progress = false;  // a member has begun
    size_t members = 0;
    int displaced = 0;  // members that the engine has not given back yet
    std::deque<RequestId> outside = {};
    std::vector<RequestId> queued = {};  // have a place and have not begun, oldest first
  };
  void place(RequestId id, Member& member, Request& request);
  void leave_place(Request& request);
  std::optional<RequestId> find_victim(uint64_t client) const;
  std::optional<RequestId> victim_of(uint64_t client, bool may_refuse) const;
  Request* next_to_fill();
  int places_of(uint64_t client) const;

  int places_;
  int held_ = 0;
  uint64_t next_request_ = 1;
  std::map<uint64_t, Request> requests_;  // in order of arrival
  std::unordered_map<RequestId, Member> members_;
  std::unordered_map<uint64_t, int> clients_;  // places of each client that has requests here
};

}  // namespace spillway
