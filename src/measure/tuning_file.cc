// SPDX-License-Identifier: Apache-2.0
#include "measure/tuning_file.h"

#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "device/tuning_text.h"
#include "storage/file_writer.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

// Returns nullopt if there is no file; throws kInvalidArgument if it is not a tuning file.
std::optional<TuningTables> try_read_tables(const fs::path& path) {
  const std::string label = printable_path(path);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return std::nullopt;
  SPW_CHECK(fs::is_regular_file(status), kInvalidArgument, "{}: not a file that can be read",
            label);
  const uintmax_t bytes = fs::file_size(path, error);
  SPW_CHECK(!error && bytes <= kMaxTuningBytes, kInvalidArgument, "{}: too large", label);
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  SPW_CHECK(file.good() || file.eof(), kInvalidArgument, "{}: cannot be read", label);
  return parse_tuning_text(text, label);
}

}  // namespace

std::optional<TuningTable> try_read_tuning(const fs::path& path, const TunedMachine& machine) {
  try {
    const auto tables = try_read_tables(path);
    if (!tables) return std::nullopt;
    const auto it = tables->find(machine);
    if (it != tables->end()) return it->second;
    log_info("{}: nothing measured on {} with {} threads", printable_path(path), machine.hardware,
             machine.threads);
  } catch (const Error& error) {
    log_warning("the tuning file is not used: {}; spillway profile makes a new one", error.what());
  }
  return std::nullopt;
}

void write_tuning(const fs::path& path, const TunedMachine& machine, const TuningTable& table,
                  bool replace_damaged) {
  TuningTables tables;
  try {
    tables = try_read_tables(path).value_or(TuningTables{});
  } catch (const Error& error) {
    SPW_CHECK(replace_damaged, kInvalidArgument, "will not overwrite a file of another kind: {}",
              error.what());
    log_warning("the tuning file is replaced: {}", error.what());
  }
  tables[machine].merge(table);
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  SPW_CHECK(!error, kIo, "cannot make the folder {}: {}", printable_path(path.parent_path()),
            error.message());
  FileWriter file(path);
  file.write(tuning_text(tables));
  file.commit();
}

}  // namespace spillway
