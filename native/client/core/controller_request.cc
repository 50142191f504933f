// SPDX-License-Identifier: Apache-2.0
#include "client/core/controller_request.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "client/core/http.h"
#include "client/core/json.h"
#include "client/core/log.h"
#include "whole_number.h"

namespace sluice::client {

namespace {

constexpr int kElectionSeconds = 10;  // several controllers may be without a leader for so long
constexpr int kMostRedirects = 3;
constexpr int kPlaceSeconds = 30;  // at most between two looks at the queue

std::string json_string(const char* text) {
  std::string out = "\"";
  for (const char* c = text; *c; ++c) {
    if (*c == '"' || *c == '\\') out += '\\';
    if (static_cast<unsigned char>(*c) >= 0x20) out += *c;
  }
  return out + "\"";
}

// Of a process that belongs to a job.
std::string job_members(const wire::OpenSession& request) {
  if (!request.job[0]) return "";
  std::string chosen;
  for (uint32_t i = 0; i < request.chosen_count; ++i)
    chosen += (i ? "," : "") + std::to_string(request.chosen[i]);
  return ",\"job\":" + json_string(request.job) +
         ",\"job_processes\":" + std::to_string(request.job_processes) + ",\"chosen\":[" + chosen +
         "]";
}

// Of what is wanted besides numbers; what is not said is left out.
std::string option_members(const RequestOptions& options) {
  std::string out;
  const auto add = [&out](const char* name, const std::string& value) {
    if (!value.empty()) out += std::string(",\"") + name + "\":" + json_string(value.c_str());
  };
  add("project", options.project);
  add("gpu_model", options.gpu_model);
  add("gpu_architecture", options.gpu_architecture);
  std::string labels;
  for (const auto& [name, value] : options.labels)
    labels +=
        (labels.empty() ? "" : ",") + json_string(name.c_str()) + ":" + json_string(value.c_str());
  if (!labels.empty()) out += ",\"labels\":{" + labels + "}";
  if (options.mode != "auto") add("mode", options.mode);
  if (options.sharing != setting::kSharing.initial) add("sharing", options.sharing);
  if (options.preempt) out += ",\"preempt\":true";
  if (options.same_gpu) out += ",\"same_gpu_allowed\":true";
  return out;
}

std::string json_of(const wire::OpenSession& request, const RequestOptions& options) {
  return "{\"vgpu_count\":" + std::to_string(request.vgpu_count) +
         ",\"gmem_mib\":" + std::to_string(request.gmem_mib) +
         ",\"ratio_percent\":" + std::to_string(request.ratio_percent) +
         (request.flags & wire::kCrossNode ? ",\"cross_node\":true,\"takes_parts\":true"
                                           : ",\"cross_node\":false") +
         ",\"priority\":" + std::to_string(request.priority) +
         ",\"wait_seconds\":" + std::to_string(request.wait_seconds) +
         ",\"pid\":" + std::to_string(request.pid) + ",\"host\":" + json_string(request.host) +
         ",\"program\":" + json_string(request.program) + job_members(request) +
         option_members(options) + "}";
}

std::string new_key() {
  std::random_device random;
  std::string key;
  for (int i = 0; i < 32; ++i) key += "0123456789abcdef"[random() & 15];
  return key;
}

// Whether the answer is a problem of this type (docs/rest-problems.md). A controller of release 0.1
// has only the title.
bool is_problem(const JsonObject& body, const char* type, const char* title_of_0_1) {
  const std::string& said = body.text("type");
  if (said.empty() || said == "about:blank") return body.text("title") == title_of_0_1;
  return said == std::string("urn:sluice:problem:") + type;
}

// One request to all controllers, until one that leads has answered it.
class ControllerRequest {
 public:
  ControllerRequest(const Config& config, const wire::OpenSession& session)
      : view_(session.flags & wire::kView),
        hold_(!view_ && session.flags & wire::kHoldJob),
        waits_(session.wait_seconds != 0),
        several_(config.controller) {
    request_.path = view_ ? "/v1/views" : hold_ ? "/v1/holds" : "/v1/sessions";
    request_.body = json_of(session, config.options);
    request_.ca_file = config.ca_file;
    request_.answer_seconds =
        hold_ || session.wait_seconds < 0 ? -1 : 30 + static_cast<int>(session.wait_seconds);
    if (!hold_ && !view_) key_ = new_key();
  }

  bool prepare(const Config& config, std::string* error);
  // False: nobody answered; `error` has what each said.
  bool ask(HttpAnswer* answer, std::string* error);
  // Whether a controller had the job's hold until it went away.
  bool was_held() const { return was_held_; }

 private:
  enum class Next { kDone, kNextAddress, kSameAgain };

  Asked follow(HttpAddress address, HttpAnswer* answer, std::string* error);
  std::string proof() const;  // the headers that say who asks, and what
  int show_place(const HttpAddress& address);
  Next judge(const HttpAnswer& answer);
  bool patient() const { return std::chrono::steady_clock::now() < until_; }

  HttpRequest request_;
  bool view_, hold_, waits_;
  std::string several_, token_, key_;
  std::vector<HttpAddress> addresses_;
  tls::Deadline until_ = tls::in_seconds(kElectionSeconds);
  int look_again_ = 1;          // seconds
  bool in_transition_ = false;  // somebody is there, but none that leads yet
  bool was_held_ = false;
};

bool ControllerRequest::prepare(const Config& config, std::string* error) {
  std::stringstream list(several_);
  std::string entry;
  while (std::getline(list, entry, ',')) {
    const size_t first = entry.find_first_not_of(" \t"), last = entry.find_last_not_of(" \t");
    if (first == std::string::npos) continue;
    entry = entry.substr(first, last - first + 1);
    HttpAddress address;
    if (!parse_address(entry, !config.ca_file.empty(), &address)) {
      *error = "\"" + entry +
               "\" is no controller's address: SLUICE_CONTROLLER is "
               "host:port,host:port…, each behind https:// where it has TLS";
      return false;
    }
    addresses_.push_back(address);
  }
  if (addresses_.empty()) {
    *error = "no controller is named: set SLUICE_CONTROLLER to host:port";
    return false;
  }
  return read_token(config, &token_, error);
}

Asked ControllerRequest::follow(HttpAddress address, HttpAnswer* answer, std::string* error) {
  HttpRequest request = request_;
  for (int redirects = 0;; ++redirects) {
    request.headers = proof();
    if (waits_ && !key_.empty()) request.meanwhile = [&] { return show_place(address); };
    const bool here =
        address.host == "localhost" || address.host.starts_with("127.") || address.host == "::1";
    if (!token_.empty() && !address.tls && !here)
      log_once(LogLevel::kInfo, "the token goes to " + address.shown() +
                                    " in the clear: name that controller as https://… and its CA "
                                    "in SLUICE_CA");
    const Asked asked = http_ask(address, request, answer, error);
    if (asked != Asked::kAnswered) {
      *error = address.shown() + ": " + *error;
      return asked;
    }
    if (answer->status != 307 || redirects == kMostRedirects) return asked;
    const size_t path = answer->location.find('/', answer->location.find("//") + 2);
    HttpAddress leader;
    if (path == std::string::npos ||
        !parse_address(answer->location.substr(0, path), false, &leader) ||
        answer->location.find_first_of(" \t") != std::string::npos) {
      *error = address.shown() + " refers to \"" + answer->location + "\", which is no address";
      return Asked::kNotAsked;
    }
    if (address.tls && !leader.tls) {
      *error = address.shown() + " refers to " + leader.text() + ", where nothing is protected";
      return Asked::kNotAsked;
    }
    request.path = answer->location.substr(path);
    address = leader;
  }
}

std::string ControllerRequest::proof() const {
  return (token_.empty() ? "" : "Authorization: Bearer " + token_ + "\r\n") +
         (key_.empty() ? "" : "Idempotency-Key: " + key_ + "\r\n");
}

// Tells the user where in the queue he stands. Returns in how many seconds to look again.
int ControllerRequest::show_place(const HttpAddress& address) {
  HttpRequest request;
  request.method = "GET";
  request.path = "/v1/queue/mine";
  request.headers = proof();
  request.ca_file = request_.ca_file;
  request.answer_seconds = 5;
  HttpAnswer answer;
  std::string error;
  if (http_ask(address, request, &answer, &error) == Asked::kAnswered && answer.status == 200) {
    const JsonObject place(answer.body);
    std::string line = place.text("line");
    for (char& c : line)
      if (static_cast<unsigned char>(c) < ' ') c = ' ';
    std::fprintf(stderr, "sluice: %s\n", line.c_str());
    const std::string seconds = place.text("line_seconds");  // 15 or 15.0
    char* end = nullptr;
    const long whole = std::strtol(seconds.c_str(), &end, 10);
    if (end != seconds.c_str()) return static_cast<int>(std::clamp(whole, 1L, 600L));
  }
  // It does not wait (yet), or the controller does not say.
  return look_again_ = std::min(look_again_ * 2, kPlaceSeconds);
}

ControllerRequest::Next ControllerRequest::judge(const HttpAnswer& answer) {
  const JsonObject body(answer.body);
  const bool refused = !body.text("cuda_error").empty();
  const auto rest = [&](int seconds) {
    std::this_thread::sleep_for(std::chrono::seconds(std::clamp(seconds, 1, 5)));
  };
  if (answer.status == 409 && !refused &&
      is_problem(body, "request-under-way", "Request is under way") && patient()) {
    rest(answer.retry_after);  // the one that broke off, and that the controller has not missed yet
    return Next::kSameAgain;
  }
  if (answer.status == 409 && !refused &&
      is_problem(body, "outcome-unknown", "Outcome is not known") && patient()) {
    // Whatever was granted goes back when nobody comes with its key.
    key_ = new_key();
    return Next::kSameAgain;
  }
  if (answer.status == 201 && body.text("key").empty() && patient()) {
    key_ = new_key();  // an answer from before a restart, which secrets do not outlive
    return Next::kSameAgain;
  }
  if (answer.status == 429 && is_problem(body, "too-many-keys", "Too many keys") && !key_.empty()) {
    key_.clear();
    return Next::kSameAgain;
  }
  if (answer.status == 429 && patient()) {
    rest(answer.retry_after);
    return Next::kSameAgain;
  }
  if ((answer.status == 503 || answer.status == 307) && !refused) {
    in_transition_ = true;
    return Next::kNextAddress;
  }
  return Next::kDone;
}

bool ControllerRequest::ask(HttpAnswer* answer, std::string* error) {
  for (;;) {
    std::string troubles;
    bool answered = false;
    in_transition_ = false;
    for (const HttpAddress& address : addresses_) {
      Next next;
      do {
        std::string trouble;
        HttpAnswer said;
        const Asked asked = follow(address, &said, &trouble);
        if (asked == Asked::kAnswered) {
          *answer = said;
          answered = true;
          next = judge(said);
        } else {
          troubles += (troubles.empty() ? "" : "; nor at ") + trouble;
          in_transition_ |= asked == Asked::kBrokenOff;
          next = Next::kNextAddress;
        }
        if (asked == Asked::kBrokenOff && hold_) {  // its launcher asks anew
          *error = "no sluice-controller at " + trouble;
          was_held_ = true;
          return false;
        }
      } while (next == Next::kSameAgain);
      if (next == Next::kDone) return true;
    }
    if (!in_transition_ || !patient()) {
      *error = "no sluice-controller at " + troubles;
      return answered;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
  }
}

}  // namespace

bool read_token(const Config& config, std::string* token, std::string* error) {
  *token = config.token;
  const std::string& path = config.token_file;
  if (token->empty() && !path.empty()) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file < 0 && errno == ENOENT && !config.token_file_named) return true;
    struct stat st {};
    if (file < 0 || fstat(file, &st) != 0 || !S_ISREG(st.st_mode)) {
      *error = "the token's file " + path +
               " cannot be read: " + (file < 0 ? std::strerror(errno) : "it is no plain file");
      if (file >= 0) ::close(file);
      return false;
    }
    char text[1025];
    const ssize_t n = read(file, text, sizeof text - 1);
    ::close(file);
    if ((st.st_mode & (S_IRWXO | S_IWGRP)) != 0) {
      *error = "the token's file " + path +
               " is open to others: chmod 600 it, or 640 for the group that shares the token";
      return false;
    }
    if (st.st_uid != geteuid() && st.st_uid != 0) {
      *error = "the token's file " + path + " is neither yours nor root's";
      return false;
    }
    *token = std::string(text, static_cast<size_t>(std::max<ssize_t>(n, 0)));
    const size_t last = token->find_last_not_of(" \t\r\n");
    token->erase(last == std::string::npos ? 0 : last + 1);
    if (token->empty()) {
      *error = "the token's file " + path + " is empty";
      return false;
    }
  }
  const bool printable = std::all_of(token->begin(), token->end(),
                                     [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  if (printable && token->size() < 1024) return true;
  *error = "the token (SLUICE_TOKEN, or " + (path.empty() ? "its file" : path) +
           ") is none: it is one word of printable characters";
  return false;
}

namespace {

bool read_ticket(const JsonObject& body, Ticket* ticket) {
  ticket->key = body.text("key");
  ticket->address = body.text("address");
  ticket->port = body.text("port");
  ticket->tls = body.text("tls") == "true";
  ticket->name = body.text("tls_name");
  ticket->node = body.text("node");
  return !ticket->key.empty() && ticket->key.size() < sizeof wire::OpenSession::key &&
         !ticket->address.empty() && !ticket->port.empty();
}

// Whether a controller that leads gave what was asked for.
bool is_answered(const Config& config, const wire::OpenSession& request, HttpAnswer* answer,
                 Refusal* refusal) {
  std::string* error = &refusal->text;
  ControllerRequest question(config, request);
  if (!question.prepare(config, error)) return false;
  const bool answered = question.ask(answer, error);
  refusal->held = question.was_held();
  refusal->nobody_answered = !answered && !refusal->held;
  if (!answered) return false;
  if (answer->status >= 200 && answer->status <= 299) return true;
  const JsonObject body(answer->body);
  *error = body.text("detail");
  if (uint32_t cuda = 0; read_whole_number(body.text("cuda_error"), &cuda) && cuda > 0)
    refusal->status = cuda;
  if (error->empty()) *error = "the controller answered " + std::to_string(answer->status);
  return false;
}

}  // namespace

bool view_net(const Config& config, wire::OpenSession request, std::string* text,
              Refusal* refusal) {
  request.channel = wire::ChannelKind::kTcp;
  HttpAnswer answer;
  if (!is_answered(config, request, &answer, refusal)) return false;
  *text = std::move(answer.body);
  return true;
}

bool ask_for_session(const Config& config, const wire::OpenSession& request,
                     std::vector<Ticket>* tickets, Refusal* refusal) {
  std::string* error = &refusal->text;
  HttpAnswer answer;
  if (!is_answered(config, request, &answer, refusal)) return false;
  const JsonObject body(answer.body);
  if (request.flags & wire::kHoldJob) {
    *error = "the controller ended the hold";
    return false;
  }
  const std::vector<JsonObject>& parts = body.objects("parts");
  if (parts.size() > wire::kMaxDevices) {
    *error = "the controller's answer names " + std::to_string(parts.size()) + " nodes";
    return false;
  }
  tickets->resize(std::max<size_t>(1, parts.size()));
  bool complete = parts.empty() ? read_ticket(body, tickets->data()) : true;
  for (size_t i = 0; i < parts.size(); ++i) complete &= read_ticket(parts[i], &(*tickets)[i]);
  if (!complete) *error = "the controller's answer has no address, port and key";
  return complete;
}

}  // namespace sluice::client
