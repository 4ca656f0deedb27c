// SPDX-License-Identifier: Apache-2.0
#include "serve/batch_journal.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <optional>

#include "base/error.h"
#include "base/fault_points.h"
#include "serve/checksum.h"
#include "serve/test_folder.h"

namespace spillway {
namespace {

const JobFields kJob = {{"input", "abc"}, {"model", "m 1"}};

// Returns the result of a line, the same in all tests.
std::string result(uint64_t line) {
  return "{\"custom_id\":\"r" + std::to_string(line) + "\",\"text\":\"" +
         std::string(line * 7 % 40, 'x') + "\"}";
}

class BatchJournalTest : public testing::Test {
 protected:
  // Returns a journal with results of these lines, as a killed process leaves it.
  std::string journal_text(std::initializer_list<uint64_t> lines) {
    {
      BatchJournal journal(path_, true);
      journal.begin(kJob, 77);
      for (const uint64_t line : lines) journal.append(line, line % 2 == 0, result(line));
    }
    return folder_.read("j");
  }
  // Opens `text` as a journal and adds the missing results of lines 1 to 4; the output must be
  // right.
  void expect_recovers(const std::string& text) {
    folder_.write("j", text);
    size_t found = 0;
    {
      BatchJournal journal(path_, false);
      found = journal.size();
      journal.begin(kJob, 77);
      EXPECT_EQ(journal.created(), 77);
      for (uint64_t line = 4; line >= 1; --line) {
        if (!journal.has(line)) journal.append(line, line % 2 == 0, result(line));
      }
      EXPECT_EQ(journal.failed(), 2U);
      journal.write_output(folder_ / "out");
    }
    ASSERT_EQ(folder_.read("out"),
              result(1) + "\n" + result(2) + "\n" + result(3) + "\n" + result(4) + "\n");
    BatchJournal again(path_, false);
    ASSERT_EQ(again.size(), 4U) << "what was appended after " << found << " is not found again";
  }

  // Runs a job with lines 1 to 4 from the journal's state to the output; returns the error's code.
  std::optional<ErrorCode> run_job() {
    try {
      BatchJournal journal(path_, false);
      journal.begin(kJob, 77);
      for (const uint64_t line : {3, 1, 2, 4}) {
        if (!journal.has(line)) journal.append(line, line % 2 == 0, result(line));
      }
      journal.sync();
      journal.write_output(folder_ / "out");
      journal.remove();
      return std::nullopt;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(folder_.path()), std::string::npos) << error.what();
      return error.code();
    }
  }
  // Runs the job from `start`, with a fault at the nth call of `point`, and then once more without.
  // Returns whether there were that many calls.
  bool expect_survives(const std::string& start, const char* point, uint64_t nth, FaultKind kind) {
    const std::string whole =
        result(1) + "\n" + result(2) + "\n" + result(3) + "\n" + result(4) + "\n";
    std::filesystem::remove(path_);
    if (!start.empty()) folder_.write("j", start);
    folder_.write("out", "old");
    arm_fault(point, nth, kind);
    const std::optional<ErrorCode> failed = run_job();
    const bool reached = fault_hits(point) >= nth;
    disarm_faults();
    const bool recovers = kind == FaultKind::kEintr || kind == FaultKind::kShort;
    EXPECT_FALSE(recovers && failed);
    if (failed) {
      EXPECT_EQ(failed, ErrorCode::kIo);
      // The new output may be there only if the failing call was the sync of its folder.
      const std::string out = folder_.read("out");
      EXPECT_TRUE(out == "old" || (out == whole && std::string_view(point) == "io.sync")) << out;
      EXPECT_FALSE(std::filesystem::exists(path_.string() + ".tmp"));
      EXPECT_GE(BatchJournal(path_, false).size(), start.empty() ? 0U : 2U) << "of before";
      EXPECT_EQ(run_job(), std::nullopt);
    }
    EXPECT_EQ(folder_.read("out"), whole);
    EXPECT_FALSE(std::filesystem::exists(path_));
    return reached;
  }

  TestFolder folder_;
  std::filesystem::path path_ = folder_ / "j";
};

TEST_F(BatchJournalTest, KeepsResultsAndWritesThemInOrder) {
  journal_text({3, 1, 10, 2});
  BatchJournal journal(path_, false);
  EXPECT_TRUE(journal.has_job());
  EXPECT_EQ(journal.created(), 77);
  EXPECT_EQ(journal.size(), 4U);
  EXPECT_EQ(journal.failed(), 2U);
  EXPECT_TRUE(journal.has(10) && !journal.has(4));
  journal.write_output(folder_ / "out");
  journal.remove();
  EXPECT_EQ(folder_.read("out"),
            result(1) + "\n" + result(2) + "\n" + result(3) + "\n" + result(10) + "\n");
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".tmp"));
}

TEST_F(BatchJournalTest, RecoversFromAKillAtEveryByte) {
  const std::string text = journal_text({3, 1, 2});
  for (size_t bytes = 0; bytes <= text.size(); ++bytes) expect_recovers(text.substr(0, bytes));
}

TEST_F(BatchJournalTest, NeverTakesADamagedRecordForAResult) {
  const std::string text = journal_text({3, 1, 2});
  const size_t header = text.find('\n') + 1;
  for (size_t byte = header; byte < text.size(); ++byte) {
    std::string damaged = text;
    damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << byte % 7));
    expect_recovers(damaged);
  }
  // A power failure may leave zeros before valid records.
  std::string zeros = text;
  std::fill_n(zeros.begin() + static_cast<std::ptrdiff_t>(header) + 5, 20, '\0');
  expect_recovers(zeros);
  expect_recovers(text + std::string(5000, '\0'));
  expect_recovers(text + text.substr(header));
}

TEST_F(BatchJournalTest, RefusesADamagedHeaderButCanBeginAnew) {
  const std::string text = journal_text({1});
  const size_t header = text.find('\n');
  for (size_t byte = 0; byte < header; ++byte) {
    std::string damaged = text;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 1);
    folder_.write("j", damaged);
    EXPECT_NE(error_of([&] { BatchJournal journal(path_, false); }).find("--restart"),
              std::string::npos);
    EXPECT_EQ(folder_.read("j"), damaged) << "it was not ours to change";
  }
  BatchJournal journal(path_, true);
  EXPECT_FALSE(journal.has_job());
}

TEST_F(BatchJournalTest, LeavesFilesAloneThatAreNotItsOwn) {
  for (const std::string text : {"hello", "hello\n", "{}\n", "{\"xxh3\":1}\n", "\n"}) {
    folder_.write("j", text);
    EXPECT_NE(error_of([&] { BatchJournal journal(path_, false); }), "no error") << text;
    EXPECT_EQ(folder_.read("j"), text);
  }
  std::filesystem::create_directory(folder_ / "d");
  EXPECT_NE(error_of([&] { BatchJournal journal(folder_ / "d", false); }), "no error");
}

TEST_F(BatchJournalTest, RefusesAnotherJobAndSaysWhatDiffers) {
  journal_text({1});
  BatchJournal journal(path_, false);
  const auto refused = [&](const JobFields& job) {
    return error_of([&] { journal.begin(job, 5); });
  };
  EXPECT_EQ(refused(kJob), "no error");
  EXPECT_NE(refused({{"input", "abd"}, {"model", "m 1"}}).find("another input (abc, now abd)"),
            std::string::npos);
  EXPECT_NE(refused({{"input", "abc"}, {"model", "m 2"}}).find("another model"), std::string::npos);
  EXPECT_EQ(journal.created(), 77);
  // Other versions may have fewer, other or more fields.
  for (const JobFields& job :
       {JobFields{{"input", "abc"}}, JobFields{{"input", "abc"}, {"device", "m 1"}},
        JobFields{{"input", "abc"}, {"model", "m 1"}, {"--new", "0"}}}) {
    const std::string error = refused(job);
    EXPECT_NE(error.find("another version of spillway"), std::string::npos) << error;
    EXPECT_NE(error.find("--restart"), std::string::npos);
  }
}

// An earlier version of this program wrote the job's options as one field.
TEST_F(BatchJournalTest, RefusesAJournalOfAnEarlierFormat) {
  const std::string header =
      R"("line":0,"failed":false,"result":{"format":"spillway batch journal 1","created":77,)"
      R"("job":{"input":"abc","model":"m 1","options":"--ctx 0 --kv-type auto"}}})";
  const std::string text = "{\"xxh3\":\"" + hex64(checksum64(header)) + "\"," + header + "\n";
  folder_.write("j", text);
  const std::string error = error_of([&] { BatchJournal journal(path_, false); });
  EXPECT_NE(error.find("another version of spillway"), std::string::npos) << error;
  EXPECT_NE(error.find("--restart"), std::string::npos);
  EXPECT_EQ(folder_.read("j"), text);
  EXPECT_FALSE(BatchJournal(path_, true).has_job());
}

TEST_F(BatchJournalTest, BelongsToOneProcessAtATime) {
  journal_text({1});
  BatchJournal journal(path_, false);
  // A lock belongs to an opened file, so a second journal stands for another process.
  EXPECT_NE(error_of([&] { BatchJournal other(path_, false); }).find("another process"),
            std::string::npos);
  EXPECT_NE(error_of([&] { BatchJournal other(path_, true); }).find("another process"),
            std::string::npos);
  EXPECT_EQ(journal.size(), 1U);
}

TEST_F(BatchJournalTest, LeavesNothingBehindWhereNothingBegan) {
  { BatchJournal journal(path_, false); }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

// Every file call fails in turn, in each way.
TEST_F(BatchJournalTest, EveryFileCallMayFailAndTheJobGoesOn) {
  const std::string begun = journal_text({3, 1, 2});
  for (const std::string& start : {std::string(), begun.substr(0, begun.size() - 9)}) {
    for (const char* point :
         {"io.open", "io.read", "io.write", "io.truncate", "io.sync", "io.rename"}) {
      for (const FaultKind kind :
           {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr, FaultKind::kShort}) {
        uint64_t nth = 1;
        while (expect_survives(start, point, nth, kind)) {
          ASSERT_FALSE(HasFailure()) << point << " " << nth << ", kind " << static_cast<int>(kind);
          ASSERT_LT(++nth, 100U);
        }
        // An empty journal has nothing to truncate.
        const bool used = !start.empty() || std::string_view(point) != "io.truncate";
        EXPECT_EQ(nth > 1, used) << point;
      }
    }
  }
}

// This fault halves each transfer, and half of one byte is none: that must end with an error.
TEST_F(BatchJournalTest, ShortTransfersEndInTime) {
  for (const char* point : {"io.read", "io.write"}) {
    arm_fault(point, 1, FaultKind::kShort, 1'000'000);
    EXPECT_EQ(run_job(), ErrorCode::kIo) << point;
    disarm_faults();
    EXPECT_EQ(run_job(), std::nullopt);
  }
}

// A limit on file sizes stands for a full disk.
TEST_F(BatchJournalTest, GoesOnAfterTheDiskWasFull) {
  std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit old = {};
  getrlimit(RLIMIT_FSIZE, &old);
  const std::string text = journal_text({3, 1});
  for (uint64_t room = 0; room < text.size() + 80; room += 7) {
    std::filesystem::remove(path_);
    const struct rlimit limit = {room, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string error = error_of([&] {
      BatchJournal journal(path_, true);
      journal.begin(kJob, 77);
      for (const uint64_t line : {3, 1, 2}) journal.append(line, line % 2 == 0, result(line));
      journal.write_output(folder_ / "out");
    });
    setrlimit(RLIMIT_FSIZE, &old);
    if (error != "no error") {
      EXPECT_NE(error.find("make room and run the same command again"), std::string::npos) << error;
      EXPECT_FALSE(std::filesystem::exists(path_.string() + ".tmp"));
    }
    expect_recovers(folder_.read("j"));
    std::filesystem::remove(folder_ / "out");
  }
  std::signal(SIGXFSZ, SIG_DFL);
}

TEST_F(BatchJournalTest, KeepsThePlanThatItWasBegunWith) {
  EXPECT_EQ(try_plan_of_journal(path_), std::nullopt);
  {
    BatchJournal journal(path_, false);
    journal.begin(kJob, 77, "{\n \"kv\": 1}");
    // The plan can be read while another object holds the journal.
    EXPECT_EQ(try_plan_of_journal(path_), "{\n \"kv\": 1}");
    journal.append(1, false, result(1));
  }
  {
    BatchJournal journal(path_, false);
    journal.begin(kJob, 78, "another");
  }
  EXPECT_EQ(try_plan_of_journal(path_), "{\n \"kv\": 1}");
  // A journal without a plan and a foreign file have none.
  folder_.write("j", journal_text({1}));
  EXPECT_EQ(try_plan_of_journal(path_), std::nullopt);
  folder_.write("j", "nothing of ours\n");
  EXPECT_EQ(try_plan_of_journal(path_), std::nullopt);
}

}  // namespace
}  // namespace spillway
