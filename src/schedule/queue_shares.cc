// SPDX-License-Identifier: Apache-2.0
#include "schedule/queue_shares.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "base/error.h"

namespace spillway {

QueueShares::QueueShares(int places) : places_(places) { SPW_ASSERT(places > 0); }

int QueueShares::places_of(uint64_t client) const {
  const auto found = clients_.find(client);
  return found == clients_.end() ? 0 : found->second;
}

void QueueShares::place(RequestId id, Member& member, Request& request) {
  member.state = State::kQueued;
  request.queued.push_back(id);
  ++request.places;
  ++clients_[request.client];
  ++held_;
}

void QueueShares::leave_place(Request& request) {
  --request.places;
  --clients_[request.client];
  --held_;
}

// The newest queued member of the client's request that holds the most places.
std::optional<RequestId> QueueShares::victim_of(uint64_t client, bool may_refuse) const {
  const Request* most = nullptr;
  for (const auto& [number, request] : requests_) {
    if (request.client != client || request.queued.empty()) continue;
    const bool is_refused = request.places == 1;
    if (is_refused && (!may_refuse || request.has_progress)) continue;
    // Later requests have newer members.
    if (most == nullptr || request.places >= most->places) most = &request;
  }
  return most == nullptr ? std::nullopt : std::optional(most->queued.back());
}

std::optional<RequestId> QueueShares::find_victim(uint64_t client) const {
  std::vector<std::pair<int, uint64_t>> fullest;  // clients, by places
  const int own = places_of(client);
  for (const auto& [other, places] : clients_)
    if (other != client && places >= own + 2) fullest.emplace_back(places, other);
  std::ranges::sort(fullest, std::greater());
  for (const auto& [places, other] : fullest)
    if (const auto victim = victim_of(other, /*may_refuse=*/true)) return victim;
  return victim_of(client, /*may_refuse=*/false);
}

std::optional<QueueShares::Admission> QueueShares::try_admit(uint64_t client,
                                                             std::span<const RequestId> members) {
  SPW_ASSERT(!members.empty());
  Admission admission;
  if (places_ > 0 && held_ >= places_) {
    admission.displaced = find_victim(client);
    if (!admission.displaced) return std::nullopt;
    Member& victim = members_.at(*admission.displaced);
    Request& loser = requests_.at(victim.request);
    victim.state = State::kDisplaced;
    ++loser.displaced;
    std::erase(loser.queued, *admission.displaced);
    leave_place(loser);
  }
  const uint64_t number = next_request_++;
  Request& request = requests_[number];
  request = {.client = client, .members = members.size()};
  clients_.try_emplace(client, 0);
  for (const RequestId id : members) {
    members_[id] = {.request = number};
    request.outside.push_back(id);
  }
  const RequestId first = request.outside.front();
  request.outside.pop_front();
  place(first, members_.at(first), request);
  admission.placed.push_back(first);
  for (const RequestId id : fill()) admission.placed.push_back(id);
  return admission;
}

void QueueShares::begin(RequestId id) {
  const auto found = members_.find(id);
  if (found == members_.end() || found->second.state != State::kQueued) return;
  Request& request = requests_.at(found->second.request);
  found->second.state = State::kBegun;
  request.has_progress = true;
  std::erase(request.queued, id);
}

void QueueShares::end(RequestId id) {
  const auto found = members_.find(id);
  if (found == members_.end()) return;
  const Member member = found->second;
  members_.erase(found);
  const auto of = requests_.find(member.request);
  Request& request = of->second;
  if (member.state == State::kOutside) std::erase(request.outside, id);
  if (member.state == State::kDisplaced) --request.displaced;
  if (member.state == State::kQueued) std::erase(request.queued, id);
  if (member.state == State::kQueued || member.state == State::kBegun) leave_place(request);
  if (--request.members > 0) return;
  const uint64_t client = request.client;
  requests_.erase(of);
  const auto is_of_client = [&](const auto& other) { return other.second.client == client; };
  if (std::ranges::none_of(requests_, is_of_client)) clients_.erase(client);
}

std::vector<RequestId> QueueShares::withdrawn(RequestId id) {
  const auto found = members_.find(id);
  if (found == members_.end() || found->second.state != State::kDisplaced) return {};
  Request& request = requests_.at(found->second.request);
  found->second.state = State::kOutside;
  request.outside.push_front(id);
  --request.displaced;
  // The request's fate is decided when the engine has given back all of its displaced members.
  if (request.places > 0 || request.has_progress || request.displaced > 0) return {};
  const std::vector<RequestId> refused(request.outside.begin(), request.outside.end());
  for (const RequestId member : refused) end(member);
  return refused;
}

void QueueShares::restore(RequestId id) {
  const auto found = members_.find(id);
  if (found == members_.end() || found->second.state != State::kDisplaced) return;
  Request& request = requests_.at(found->second.request);
  --request.displaced;
  place(id, found->second, request);
  begin(id);
}

QueueShares::Request* QueueShares::next_to_fill() {
  const int most = std::max(1, places_ / 2);
  const int share = std::max(1, places_ / std::max(1, static_cast<int>(clients_.size())));
  if (held_ >= places_) return nullptr;
  Request* next = nullptr;
  std::pair<int, int> fewest(std::numeric_limits<int>::max(), 0);
  for (auto& [number, request] : requests_) {
    if (request.outside.empty() || (request.places == 0 && request.displaced > 0)) continue;
    const int places = places_of(request.client);
    // A request whose last place has ended gets the next one, whatever its client holds.
    if (request.places > 0 && (request.places >= most || places >= share)) continue;
    const std::pair<int, int> has(request.places == 0 ? -1 : places, request.places);
    if (has < fewest) {
      fewest = has;
      next = &request;
    }
  }
  return next;
}

std::vector<RequestId> QueueShares::fill() {
  std::vector<RequestId> placed;
  while (Request* const request = next_to_fill()) {
    const RequestId id = request->outside.front();
    request->outside.pop_front();
    place(id, members_.at(id), *request);
    placed.push_back(id);
  }
  return placed;
}

}  // namespace spillway
