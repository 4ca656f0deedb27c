// SPDX-License-Identifier: Apache-2.0
#include "serve/http/response_head.h"

#include <fmt/format.h>

#include <array>
#include <iterator>

namespace spillway {
namespace {

std::string_view reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "";  // the reason phrase is optional
  }
}

}  // namespace

std::string response_head(const HttpAnswer& answer, const ResponseFraming& framing,
                          std::string_view date, std::string_view cors_lines) {
  std::string text;
  text.reserve(256);
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\nDate: {}\r\n", answer.status, reason(answer.status), date);
  if (!answer.content_type.empty())
    fmt::format_to(out, "Content-Type: {}\r\n", answer.content_type);
  if (framing.content_length)
    fmt::format_to(out, "Content-Length: {}\r\n", *framing.content_length);
  if (framing.is_chunked) text += "Transfer-Encoding: chunked\r\n";
  if (framing.closes) text += "Connection: close\r\n";
  if (framing.says_keep_alive) text += "Connection: keep-alive\r\n";
  for (const HttpHeader& header : answer.headers)
    fmt::format_to(out, "{}: {}\r\n", header.name, header.value);
  text += cors_lines;
  text += "\r\n";
  return text;
}

std::string http_date(std::time_t seconds) {
  // strftime is not used, since its names of days follow the locale.
  constexpr std::array kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                  "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm time{};
  ::gmtime_r(&seconds, &time);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT",
                     kDays.at(static_cast<size_t>(time.tm_wday)), time.tm_mday,
                     kMonths.at(static_cast<size_t>(time.tm_mon)), time.tm_year + 1900,
                     time.tm_hour, time.tm_min, time.tm_sec);
}

bool status_has_body(int status) { return status != 204 && status != 304; }

}  // namespace spillway
