// SPDX-License-Identifier: Apache-2.0
// Opening a session over the network: post the request to the controller's REST API, connect to the
// server that it names and present the one-time key. Plain HTTP/1.1 with one small request; TLS
// belongs to the issue that brings certificates.
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "client/core/tcp_channel.h"
#include "wire/session_record.h"

namespace sluice::client {

namespace {

int connect_to(const std::string& host, const std::string& port, std::string* error) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int rc = getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  if (rc != 0) {
    *error = host + ":" + port + ": " + gai_strerror(rc);
    return -1;
  }
  int s = -1;
  for (addrinfo* a = list; a; a = a->ai_next) {
    s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s >= 0 && connect(s, a->ai_addr, a->ai_addrlen) == 0) break;
    *error = host + ":" + port + ": " + std::strerror(errno);
    if (s >= 0) ::close(s);
    s = -1;
  }
  freeaddrinfo(list);
  if (s >= 0) {
    const int one = 1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    // A node that is gone without a word is noticed, also by a program that only waits.
    const int idle = 30, interval = 10, probes = 6;
    setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(s, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(s, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(s, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  }
  return s;
}

bool send_exact(int s, const void* data, size_t n) {
  const char* at = static_cast<const char*>(data);
  while (n > 0) {
    const ssize_t sent = send(s, at, n, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    n -= static_cast<size_t>(sent);
  }
  return true;
}

bool read_exact(int s, void* data, size_t n) {
  char* at = static_cast<char*>(data);
  while (n > 0) {
    const ssize_t got = recv(s, at, n, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    n -= static_cast<size_t>(got);
  }
  return true;
}

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
std::string wish_members(const Wishes& wishes) {
  std::string out;
  const auto add = [&out](const char* name, const std::string& value) {
    if (!value.empty()) out += std::string(",\"") + name + "\":" + json_string(value.c_str());
  };
  add("project", wishes.project);
  add("gpu_model", wishes.gpu_model);
  add("gpu_architecture", wishes.gpu_architecture);
  std::string labels;
  for (const auto& [name, value] : wishes.labels)
    labels +=
        (labels.empty() ? "" : ",") + json_string(name.c_str()) + ":" + json_string(value.c_str());
  if (!labels.empty()) out += ",\"labels\":{" + labels + "}";
  if (wishes.mode != "auto") add("mode", wishes.mode);
  if (wishes.preempt) out += ",\"preempt\":true";
  if (wishes.same_gpu) out += ",\"same_gpu_allowed\":true";
  return out;
}

// The value of a top-level member of a flat JSON object, as text; "" when absent. Enough for the
// controller's own answers.
std::string json_member(const std::string& json, const std::string& name) {
  size_t at = json.find("\"" + name + "\"");
  if (at == std::string::npos) return "";
  at = json.find(':', at);
  if (at == std::string::npos) return "";
  at = json.find_first_not_of(" \t\r\n", at + 1);
  if (at == std::string::npos) return "";
  std::string value;
  if (json[at] != '"') {
    const size_t end = json.find_first_of(",}\r\n", at);
    return json.substr(at, end - at);
  }
  for (++at; at < json.size() && json[at] != '"'; ++at) {
    if (json[at] == '\\' && at + 1 < json.size()) ++at;
    value += json[at];
  }
  return value;
}

// One POST. The body comes back in `answer`; false with `error` when nothing came.
bool post(const std::string& host, const std::string& port, const std::string& path,
          const std::string& body, int* status, std::string* answer, std::string* error) {
  const int s = connect_to(host, port, error);
  if (s < 0) {
    *error = "no sluice-controller at " + *error;
    return false;
  }
  const std::string head = "POST " + path + " HTTP/1.1\r\nHost: " + host + ":" + port +
                           "\r\nContent-Type: application/json\r\nAccept: application/json\r\n"
                           "Connection: close\r\nContent-Length: " +
                           std::to_string(body.size()) + "\r\n\r\n";
  const std::string all = head + body;
  std::string raw;
  if (send_exact(s, all.data(), all.size())) {
    char buffer[4096];
    for (;;) {
      const ssize_t n = recv(s, buffer, sizeof buffer, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0 || raw.size() > (1u << 20)) break;
      raw.append(buffer, static_cast<size_t>(n));
    }
  }
  ::close(s);
  const size_t split = raw.find("\r\n\r\n");
  if (raw.rfind("HTTP/1.", 0) != 0 || split == std::string::npos) {
    *error = "the controller at " + host + ":" + port + " did not answer HTTP";
    return false;
  }
  *status = std::atoi(raw.c_str() + 9);
  *answer = raw.substr(split + 4);
  return true;
}

}  // namespace

std::unique_ptr<Channel> open_tcp(const std::string& controller, wire::OpenSession request,
                                  const Wishes& wishes, Refusal* refusal) {
  std::string* error = &refusal->text;
  request.channel = wire::ChannelKind::kTcp;
  const size_t colon = controller.rfind(':');
  const std::string host = controller.substr(0, colon);
  const std::string port = colon == std::string::npos ? "9123" : controller.substr(colon + 1);
  const std::string body =
      "{\"vgpu_count\":" + std::to_string(request.vgpu_count) +
      ",\"gmem_mib\":" + std::to_string(request.gmem_mib) +
      ",\"ratio_percent\":" + std::to_string(request.ratio_percent) +
      ",\"cross_node\":" + (request.flags & wire::kCrossNode ? "true" : "false") +
      ",\"priority\":" + std::to_string(request.priority) +
      ",\"wait_seconds\":" + std::to_string(request.wait_seconds) +
      ",\"pid\":" + std::to_string(request.pid) + ",\"host\":" + json_string(request.host) +
      ",\"program\":" + json_string(request.program) + job_members(request) + wish_members(wishes) +
      "}";
  int status = 0;
  std::string answer;
  const bool hold = request.flags & wire::kHoldJob;
  // A hold is a request that is answered when it is over.
  if (!post(host, port, hold ? "/v1/holds" : "/v1/sessions", body, &status, &answer, error))
    return nullptr;
  if (status < 200 || status > 299) {
    *error = json_member(answer, "detail");
    if (const int cuda = std::atoi(json_member(answer, "cuda_error").c_str()); cuda > 0)
      refusal->status = static_cast<uint32_t>(cuda);
    if (error->empty()) *error = "the controller answered " + std::to_string(status);
    return nullptr;
  }
  if (hold) {
    *error = "the controller ended the hold";
    return nullptr;
  }
  const std::string key = json_member(answer, "key");
  const std::string address = json_member(answer, "address"),
                    data_port = json_member(answer, "port");
  if (key.empty() || key.size() >= sizeof request.key || address.empty() || data_port.empty()) {
    *error = "the controller's answer has no address, port and key";
    return nullptr;
  }
  std::memcpy(request.key, key.data(), key.size());
  const int s = connect_to(address, data_port, error);
  if (s < 0) {
    *error = "no sluice-server at " + *error;
    return nullptr;
  }
  std::vector<std::byte> reply(sizeof(wire::OpenReply));
  const auto head = [&] { return reinterpret_cast<wire::OpenReply*>(reply.data()); };
  bool ok = send_exact(s, &request, sizeof request) && read_exact(s, reply.data(), reply.size());
  if (!ok || head()->header.function != wire::kOpenReply) {
    *error = "sluice-server at " + address + ":" + data_port +
             " closed the connection before it answered";
  } else if (head()->status != 0) {
    head()->message[sizeof head()->message - 1] = 0;
    *error = head()->message;
    refusal->status = head()->status;
    ok = false;
  } else {
    wire::SessionRecord record;
    ok = read_exact(s, &record, sizeof record) && record.record_bytes >= sizeof record &&
         record.record_bytes < (1u << 20);
    if (ok) {
      reply.resize(sizeof(wire::OpenReply) + record.record_bytes);
      std::memcpy(reply.data() + sizeof(wire::OpenReply), &record, sizeof record);
      ok = read_exact(s, reply.data() + sizeof(wire::OpenReply) + sizeof record,
                      record.record_bytes - sizeof record);
    }
    if (!ok) *error = "sluice-server at " + address + ":" + data_port + " broke off its answer";
  }
  if (!ok) {
    ::close(s);
    return nullptr;
  }
  return std::make_unique<TcpChannel>(s, std::move(reply));
}

}  // namespace sluice::client
