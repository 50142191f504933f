// SPDX-License-Identifier: Apache-2.0
#include "client/core/http.h"

#include <poll.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "channel/dial.h"
#include "tls/client_handshake.h"
#include "whole_number.h"

namespace sluice::client {

namespace {

constexpr size_t kMostAnswer = 1 << 20;

std::string header(const std::string& head, const char* name) {
  const std::string wanted = std::string(name) + ":";
  for (size_t at = head.find("\r\n"); at != std::string::npos; at = head.find("\r\n", at)) {
    at += 2;
    if (strncasecmp(head.c_str() + at, wanted.c_str(), wanted.size()) != 0) continue;
    const size_t begin = head.find_first_not_of(" \t", at + wanted.size());
    const size_t end = std::min(head.find("\r\n", at), head.size());
    if (begin == std::string::npos || begin >= end) return "";
    return head.substr(begin, head.find_last_not_of(" \t", end - 1) + 1 - begin);
  }
  return "";
}

// False: it is cut short, or none.
bool join_chunks(const std::string& raw, std::string* body) {
  for (size_t at = 0;;) {
    const size_t line = raw.find("\r\n", at);
    if (line == std::string::npos) return false;
    const std::string_view size = std::string_view(raw).substr(at, line - at);
    size_t n = 0;
    if (!read_whole_number(size.substr(0, size.find_first_of("; \t")), &n, 16)) return false;
    if (n == 0) return true;
    at = line + 2;
    if (n > kMostAnswer || raw.size() < at + n + 2) return false;
    body->append(raw, at, n);
    at += n + 2;
  }
}

bool is_number(const std::string& s) {
  return !s.empty() && s.size() < 6 && s.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

std::string HttpAddress::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return std::string(tls ? "https://" : "http://") + (v6 ? "[" + host + "]" : host) + ":" + port;
}

bool parse_address(const std::string& text, bool tls_by_default, HttpAddress* address) {
  std::string rest = text;
  address->tls = tls_by_default;
  for (const bool tls : {false, true}) {
    const std::string scheme = tls ? "https://" : "http://";
    if (rest.compare(0, scheme.size(), scheme) != 0) continue;
    address->tls = tls;
    rest.erase(0, scheme.size());
    break;
  }
  if (!rest.empty() && rest.back() == '/') rest.pop_back();
  const size_t bracket = rest.find(']');
  const size_t colon = rest.rfind(':');
  address->port = "9123";
  if (colon != std::string::npos && (bracket == std::string::npos || colon > bracket)) {
    address->port = rest.substr(colon + 1);
    rest.erase(colon);
  }
  if (rest.size() > 2 && rest.front() == '[' && rest.back() == ']')
    rest = rest.substr(1, rest.size() - 2);
  address->host = rest;
  return !rest.empty() && rest.find_first_of(" \t\r\n/@?#[]") == std::string::npos &&
         is_number(address->port);
}

bool parse_answer(const std::string& raw, bool ended, HttpAnswer* answer) {
  const size_t split = raw.find("\r\n\r\n");
  if (raw.compare(0, 7, "HTTP/1.") != 0 || split == std::string::npos || raw.size() < 12)
    return false;
  const std::string head = raw.substr(0, split);
  *answer = {};
  uint32_t status = 0;
  if (!read_whole_number(std::string_view(raw).substr(9, 3), &status)) return false;
  answer->status = static_cast<int>(status);
  answer->location = header(head, "location");
  // A proxy may say a date instead, which is as good as nothing.
  read_whole_number(header(head, "retry-after"), &answer->retry_after);
  const std::string length = header(head, "content-length");
  if (strcasecmp(header(head, "transfer-encoding").c_str(), "chunked") == 0)
    return join_chunks(raw.substr(split + 4), &answer->body);
  answer->body = raw.substr(split + 4);
  if (length.empty()) return ended;
  size_t n = 0;
  if (!read_whole_number(length, &n) || answer->body.size() < n) return false;
  answer->body.resize(n);
  return true;
}

Asked http_ask(const HttpAddress& address, const HttpRequest& request, HttpAnswer* answer,
               std::string* error) {
  const tls::Deadline connected = tls::in_seconds(request.connect_seconds);
  const int s = channel::dial(address.host, address.port, connected, error);
  if (s < 0) return Asked::kNotAsked;
  const std::unique_ptr<const int, void (*)(const int*)> closed(
      &s, [](const int* fd) { ::close(*fd); });
  std::unique_ptr<tls::Client> tls;
  if (address.tls) {
    tls = tls::Client::connect(s, {address.host, request.ca_file}, connected, error);
    if (!tls) return Asked::kNotAsked;
  }
  const std::string shown = address.text();
  const std::string all =
      request.method + " " + request.path +
      " HTTP/1.1\r\nHost: " + shown.substr(shown.find("//") + 2) +
      "\r\nContent-Type: application/json\r\nAccept: application/json\r\nConnection: close\r\n" +
      request.headers + "Content-Length: " + std::to_string(request.body.size()) + "\r\n\r\n" +
      request.body;
  const tls::Deadline sent = tls::in_seconds(request.connect_seconds + 10);
  if (!(tls ? tls->send(all.data(), all.size(), sent, error)
            : tls::send_by(s, all.data(), all.size(), sent, error)))
    return Asked::kBrokenOff;
  const tls::Deadline answered =
      request.answer_seconds < 0 ? tls::kNever : tls::in_seconds(request.answer_seconds);
  tls::Deadline meanwhile = tls::in_seconds(1);
  std::string raw;
  char buffer[4096];
  for (;;) {
    while (request.meanwhile && meanwhile < answered && !tls::wait_for(s, POLLIN, meanwhile))
      meanwhile = tls::in_seconds(request.meanwhile());
    const long n = tls ? tls->receive_record(buffer, sizeof buffer, answered, error)
                       : tls::receive_by(s, buffer, sizeof buffer, answered, error);
    if (n == tls::kNothingYet) continue;
    if (n > 0) raw.append(buffer, static_cast<size_t>(n));
    if (parse_answer(raw, n == 0, answer)) return Asked::kAnswered;
    if (n > 0 && raw.size() < kMostAnswer) continue;
    if (n >= 0)
      *error =
          raw.empty() ? "it closed the connection without an answer" : "what it answers is no HTTP";
    return Asked::kBrokenOff;
  }
}

}  // namespace sluice::client
