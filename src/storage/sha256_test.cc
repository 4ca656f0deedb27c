// SPDX-License-Identifier: Apache-2.0
#include "storage/sha256.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "storage/temp_folder.h"

namespace spillway {
namespace {

std::string hex_of(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text))); }

// FIPS 180-2, appendix B, and the empty message.
TEST(Sha256Test, AgreesWithTheStandardsVectors) {
  EXPECT_EQ(hex_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex_of(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, PiecesOfAnySizeGiveTheSameSum) {
  const std::string text(777, 'x');
  const auto bytes = std::as_bytes(std::span(text));
  const std::string whole = hex_of(text);
  for (size_t piece = 1; piece < 200; ++piece) {
    Sha256 sum;
    for (size_t at = 0; at < bytes.size(); at += piece)
      sum.update(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    std::string hex;
    for (const uint8_t byte : sum.digest()) hex += fmt::format("{:02x}", byte);
    ASSERT_EQ(hex, whole) << piece;
  }
}

TEST(Sha256Test, LengthsAroundABlockDiffer) {
  // From an independent implementation.
  EXPECT_EQ(hex_of(std::string(55, 'a')),
            "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(hex_of(std::string(56, 'a')),
            "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  EXPECT_EQ(hex_of(std::string(64, 'a')),
            "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

TEST(Sha256Test, ReadsFiles) {
  const TempFolder folder;
  const std::string text(3'000'000, 'b');
  EXPECT_EQ(sha256_file(folder.write("f", text)), hex_of(text));
  EXPECT_EQ(sha256_file(folder.write("e", "")), hex_of(""));
}

}  // namespace
}  // namespace spillway
