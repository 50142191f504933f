// SPDX-License-Identifier: Apache-2.0
// One request to one address, in HTTP/1.1, plain or under TLS. Knows nothing of what is asked.
#pragma once

#include <functional>
#include <string>

#include "tls/socket_wait.h"

namespace sluice::client {

struct HttpAddress {
  bool tls = false;
  std::string host;  // without the brackets of an IPv6 address
  std::string port;

  // As it stands before a path: https://host:port.
  std::string text() const;
  // For people: the scheme only where it says something.
  std::string shown() const { return tls ? text() : text().substr(7); }
};

// "host", "host:port", "[v6]:port", any of them behind http:// or https://, and without a path.
// False when it is none of these.
bool parse_address(const std::string& text, bool tls_by_default, HttpAddress* address);

struct HttpRequest {
  std::string method = "POST";
  std::string path;
  std::string headers;  // further lines, each with its end
  std::string body;     // JSON; none with GET
  std::string ca_file;
  int connect_seconds = 3;  // also for the handshake
  int answer_seconds = 30;  // -1: for as long as the connection lives
  // Called when no answer has come for a second; says in how many seconds again.
  std::function<int()> meanwhile;
};

struct HttpAnswer {
  int status = 0;
  std::string body;
  std::string location;
  int retry_after = 0;  // seconds
};

enum class Asked {
  kAnswered,
  kNotAsked,   // nothing of the request went out
  kBrokenOff,  // it may have been done, or not
};

Asked http_ask(const HttpAddress& address, const HttpRequest& request, HttpAnswer* answer,
               std::string* error);

// What came, if it is a whole answer; `ended`: no more will come.
bool parse_answer(const std::string& raw, bool ended, HttpAnswer* answer);

}  // namespace sluice::client
