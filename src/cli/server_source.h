// SPDX-License-Identifier: Apache-2.0
// Answers chats through an OpenAI-compatible server.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/stopwatch.h"
#include "cli/answer_source.h"
#include "cli/sampling_options.h"
#include "cli/server_messages.h"
#include "serve/http/http_client.h"

namespace spillway {

class ServerSource : public AnswerSource {
 public:
  struct Options {
    HttpUrl url;
    std::string key = {};  // "": no key
    std::string model;     // "": the server's first model
    int max_tokens = 1024;
    bool max_tokens_given = false;  // false: it is the default
    SamplingOptions sampling;       // only flags that were given are sent
  };

  // Asks the server for its models. `cancel` must outlive it. Throws kIo if no server answers,
  // kInvalidArgument if the server refuses or has no model.
  ServerSource(Options options, const std::atomic<bool>& cancel, HttpClientLimits limits = {});

  std::string name() const override;
  bool supports_system_role() const override { return true; }  // the server decides
  std::string_view way_to_more_context() const override { return ""; }
  ChatAnswer answer(Conversation& conversation, const AnswerListener& listener) override;

 private:
  // The length of the conversation after the last answer.
  struct KnownLength {
    size_t bytes = 0;  // bytes of all messages, the answer included
    size_t tokens = 0;
  };

  static HttpUrl api_url(HttpUrl url);
  std::vector<HttpHeader> headers() const;
  std::vector<ServerModel> list_models() const;
  void choose_model();
  std::string request_body(const Conversation& conversation) const;
  void make_room(Conversation& conversation, const AnswerListener& listener) const;
  void read_answer(HttpResponse& response, const AnswerListener& listener, ChatAnswer& answer);
  [[noreturn]] void refuse(const ServerRefusal& refusal) const;

  Options options_;
  HttpClient client_;
  std::vector<ServerModel> models_;
  ServerModel model_;
  std::optional<uint64_t> seed_;
  std::optional<KnownLength> known_;
  Stopwatch since_asked_;
};

}  // namespace spillway
