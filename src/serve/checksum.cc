// SPDX-License-Identifier: Apache-2.0
#include "serve/checksum.h"

#include <fmt/core.h>
#include <xxhash.h>

#include <new>

namespace spillway {
namespace {

std::string digits_of(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

uint64_t checksum64(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hex64(uint64_t value) { return fmt::format("{:016x}", value); }

std::string checksum128(std::string_view bytes) {
  return digits_of(XXH3_128bits(bytes.data(), bytes.size()));
}

struct Checksum::State {
  State() : xxh(XXH3_createState()) {
    if (xxh == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(xxh);
  }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  XXH3_state_t* xxh;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::add(std::string_view bytes) {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}

std::string Checksum::digits() const { return digits_of(XXH3_128bits_digest(state_->xxh)); }

}  // namespace spillway
