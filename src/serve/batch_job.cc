// SPDX-License-Identifier: Apache-2.0
#include "serve/batch_job.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "serve/api_error.h"
#include "serve/checksum.h"

namespace spillway {
namespace {

using nlohmann::ordered_json;

ordered_json response(int status, const std::string& id, ordered_json body) {
  return {{"status_code", status}, {"request_id", "req_" + id}, {"body", std::move(body)}};
}

}  // namespace

BatchJob::BatchJob(const BatchInput& input, const ResultLines& lines, BatchJournal& journal,
                   const ServedModel& model, EngineClient& engine, const BatchJobOptions& options)
    : input_(input),
      lines_(lines),
      journal_(journal),
      model_(model),
      engine_(engine),
      options_(options),
      finished_before_(journal.size()) {}

bool BatchJob::step() {
  submit_more();
  if (running_.empty()) return false;
  for (const GenerationEvent& event : engine_.take()) {
    if (event.step_failed) throw Error(event.error_code, event.error);
    const auto it = running_.find(event.id);
    if (it == running_.end()) continue;
    const auto [running, index] = it->second;
    if (event.finish) running_.erase(it);
    if (running->completion.add(index, event)) finish(*running);
  }
  return true;
}

// Submits several requests together, so that a schedule that runs batch blocks starts with a full
// one.
void BatchJob::submit_more() {
  Window window;
  const auto most = static_cast<size_t>(options_.max_outstanding);
  while (running_.size() + window.requests.size() < most && next_ < input_.size()) {
    const size_t index = next_++;
    if (!journal_.has(input_.line_number(index))) read_line(index, window);
  }
  if (window.requests.empty()) return;
  const std::vector<RequestId> ids = engine_.submit(std::move(window.requests));
  for (size_t i = 0; i < ids.size(); ++i) running_.emplace(ids[i], std::move(window.choices[i]));
}

void BatchJob::read_line(size_t index, Window& window) {
  const uint64_t number = input_.line_number(index);
  if (const ApiError* problem = input_.problem(index)) {
    write_error(number, nullptr, *problem);
    return;
  }
  const BatchLine line = input_.line(index);
  try {
    // Seeded by custom_id, so that a request samples the same tokens at any place in a file.
    auto running = std::make_shared<Running>(
        Running{.line = number,
                .custom_id = line.custom_id,
                .completion = Completion(line.request(), model_, checksum64(line.custom_id))});
    count_ignored(running->completion.request().ignored);
    std::vector<GenerationRequest> requests = running->completion.take_generations();
    for (const GenerationRequest& request : requests) engine_.check(request);
    if (requests.empty()) finish(*running);
    for (size_t i = 0; i < requests.size(); ++i) {
      window.requests.push_back(std::move(requests[i]));
      window.choices.push_back({running, i});
    }
  } catch (const ApiError& error) {
    write_error(number, &line.custom_id, error);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    write_error(number, &line.custom_id, ApiError(400, "invalid_value", "", error.what()));
  }
}

void BatchJob::count_ignored(const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (ignored_fields_.size() < kMostIgnored || ignored_fields_.contains(name))
      ++ignored_fields_[name];
}

void BatchJob::finish(const Running& running) {
  if (const Choice* const failed = running.completion.failed()) {
    write_error(running.line, &running.custom_id, ApiError(500, "server_error", "", failed->error));
    return;
  }
  const std::string id = lines_.id(running.line);
  Usage usage = running.completion.usage();
  // These depend on what ran before and beside the request, but results must be reproducible.
  usage.cached_tokens.reset();
  usage.draft_accepted = usage.draft_rejected = 0;
  ordered_json body =
      running.completion.body({answer_id(running.completion.request().route, id),
                               journal_.created(), model_.name(), options_.fingerprint},
                              usage);
  journal_.append(
      running.line, false,
      lines_.write(running.line, running.custom_id, response(200, id, std::move(body)), nullptr));
}

// A line without a custom_id is no request, so there is no response either. A line with another
// line's id is written without that id: a program that joins results by id must not take it for the
// other line's answer.
void BatchJob::write_error(uint64_t line, const std::string* custom_id, const ApiError& error) {
  ordered_json answer = nullptr, name = nullptr;
  if (custom_id != nullptr) {
    name = *custom_id;
    answer = response(error.status(), lines_.id(line), error_body(error));
  }
  const ordered_json what = {{"code", error.code_name()},
                             {"message", fmt::format("line {}: {}", line, error.what())},
                             {"line", line}};
  journal_.append(line, true, lines_.write(line, name, answer, what));
}

}  // namespace spillway
