// SPDX-License-Identifier: Apache-2.0
// An error that is reported to a client of the OpenAI API.
#pragma once

#include <string>
#include <utility>

#include "base/error.h"

namespace spillway {

// Thrown if one request cannot be answered; others are not affected. Caught where answers are
// written.
class ApiError : public Error {
 public:
  // `code` is for programs ("unsupported_parameter"); `param` is the field at fault, or "".
  ApiError(int status, std::string code, std::string param, const std::string& message)
      : Error(status >= 500 ? ErrorCode::kInternal : ErrorCode::kInvalidArgument, message),
        status_(status),
        code_(std::move(code)),
        param_(std::move(param)) {}

  int status() const { return status_; }  // HTTP status
  const std::string& code_name() const { return code_; }
  const std::string& param() const { return param_; }
  const char* type() const {
    return status_ >= 500   ? "server_error"
           : status_ == 429 ? "rate_limit_error"
                            : "invalid_request_error";
  }

 private:
  int status_;
  std::string code_;
  std::string param_;
};

}  // namespace spillway
