// SPDX-License-Identifier: Apache-2.0
#include "serve/batch_input.h"

#include <gtest/gtest.h>

#include "serve/test_folder.h"

namespace spillway {
namespace {

std::string line(
    const std::string& id,
    const std::string& rest = R"("method":"POST","url":"/v1/completions","body":{"prompt":"x"})") {
  return R"({"custom_id":")" + id + "\"," + rest + "}\n";
}

// Returns "code: message" of the error that makes the line no request.
std::string problem(const BatchInput& input, size_t index) {
  const ApiError* error = input.problem(index);
  return error == nullptr ? "none" : error->code_name() + ": " + error->what();
}

TEST(BatchInputTest, GivesLinesWithTheirNumbers) {
  const TestFolder folder;
  const BatchInput input(
      folder.write("in", "\xEF\xBB\xBF" + line("a") + "\n  \r\n" + line("b") + line("")));
  ASSERT_EQ(input.size(), 3U);
  EXPECT_EQ(input.line_number(0), 1U);
  EXPECT_EQ(input.line_number(1), 4U);
  EXPECT_EQ(input.line(0).custom_id, "a");
  EXPECT_EQ(input.line(1).custom_id, "b");
  EXPECT_EQ(input.line(2).custom_id, "");
  EXPECT_EQ(std::get<std::string>(input.line(1).request().prompts[0]), "x");
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(input.problem(i), nullptr);
}

TEST(BatchInputTest, TellsWhichLinesAreNoRequests) {
  const TestFolder folder;
  const BatchInput input(folder.write(
      "in",
      line("a") + "nonsense\n[1]\n{\"custom_id\":5}\n{\"body\":{}}\n" + line("a") + line("b")));
  ASSERT_EQ(input.size(), 7U);
  EXPECT_EQ(problem(input, 0), "none");
  EXPECT_TRUE(problem(input, 1).starts_with("invalid_json: not valid JSON: column 2"))
      << problem(input, 1);
  EXPECT_TRUE(problem(input, 2).starts_with("invalid_type: not an object"));
  EXPECT_EQ(problem(input, 3), "invalid_type: 'custom_id' must be a string");
  EXPECT_EQ(problem(input, 4), "missing_required_parameter: 'custom_id' is missing");
  EXPECT_EQ(problem(input, 5), "duplicate_custom_id: 'custom_id' is 'a', which line 1 has already");
  EXPECT_EQ(problem(input, 6), "none");
}

TEST(BatchInputTest, RefusesRequestsThatAreNotForHere) {
  const TestFolder folder;
  const std::pair<const char*, const char*> cases[] = {
      {R"("url":"/v1/completions","body":{"prompt":"x"})", "missing_required_parameter"},
      {R"("method":"GET","url":"/v1/completions","body":{"prompt":"x"})", "invalid_method"},
      {R"("method":5,"url":"/v1/completions","body":{"prompt":"x"})", "invalid_type"},
      {R"("method":"POST","body":{"prompt":"x"})", "missing_required_parameter"},
      {R"("method":"POST","url":"/v1/embeddings","body":{"input":"x"})", "invalid_url"},
      {R"("method":"POST","url":"/v1/completions")", "missing_required_parameter"},
      {R"("method":"POST","url":"/v1/completions","body":"x")", "invalid_type"},
      {R"("method":"POST","url":"/v1/completions","body":{"prompt":"x","stream":true})",
       "unsupported_parameter"},
  };
  std::string text;
  for (const auto& [rest, code] : cases) text += line(std::to_string(text.size()), rest);
  const BatchInput input(folder.write("in", text));
  for (size_t i = 0; i < std::size(cases); ++i) {
    try {
      input.line(i).request();
      ADD_FAILURE() << cases[i].first;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.code_name(), cases[i].second) << cases[i].first;
    }
  }
}

TEST(BatchInputTest, ItsChecksumFollowsItsContent) {
  const TestFolder folder;
  const auto checksum = [&](const std::string& text) {
    return BatchInput(folder.write("in", text)).checksum();
  };
  const std::string first = checksum(line("a") + line("b"));
  EXPECT_EQ(checksum(line("a") + line("b")), first);
  EXPECT_NE(checksum(line("b") + line("a")), first);
  EXPECT_NE(checksum(line("a") + line("c")), first);
  EXPECT_NE(checksum(line("a") + "\n" + line("b")), first);
  EXPECT_NE(checksum(line("a")), first);
}

TEST(BatchInputTest, NoticesAFileThatChangesUnderIt) {
  const TestFolder folder;
  const BatchInput input(folder.write("in", line("a") + line("b")));
  folder.write("in", line("a") + line("c"));
  EXPECT_EQ(input.line(0).custom_id, "a");
  EXPECT_NE(error_of([&] { static_cast<void>(input.line(1)); }).find("line 2 of"),
            std::string::npos);
  folder.write("in", "");
  EXPECT_NE(error_of([&] { static_cast<void>(input.line(0)); }).find("line 1 of"),
            std::string::npos);
}

TEST(BatchInputTest, NamesUnknownFieldsOrRefusesThem) {
  const TestFolder folder;
  const auto path = folder.write(
      "in",
      R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"x","cache_prompt":true}})");
  EXPECT_EQ(BatchInput(path).line(0).request().ignored, std::vector<std::string>{"cache_prompt"});
  EXPECT_THROW(static_cast<void>(BatchInput(path, UnknownFields::kRefuse).line(0).request()),
               ApiError);
}

TEST(BatchInputTest, RefusesWhatIsNoFileOfRequests) {
  const TestFolder folder;
  for (const auto& path :
       {folder / "missing", folder / "", folder.write("empty", ""),
        folder.write("blank", "\n \n\r\n"), std::filesystem::path("/dev/null")}) {
    try {
      const BatchInput input(path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    }
  }
}

}  // namespace
}  // namespace spillway
