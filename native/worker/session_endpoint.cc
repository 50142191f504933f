// SPDX-License-Identifier: Apache-2.0
#include "worker/session_endpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include "process/control.h"
#include "tls/record_stream.h"
#include "wire/address_windows.h"

namespace sluice::worker {

namespace {

constexpr int64_t kSecond = 1'000'000'000;

// The stream of a connection on which the server has shaken hands.
std::unique_ptr<channel::Stream> secure_stream(int socket, const process::Message& m,
                                               std::string* error) {
  tls::Session session;
  const std::string suite = m.text("tls");
  session.suite = suite == "TLS_AES_128_GCM_SHA256" ? tls::Suite::kAes128 : tls::Suite::kAes256;
  if ((session.suite == tls::Suite::kAes256 && suite != "TLS_AES_256_GCM_SHA384") ||
      !tls::parse_secret(m.text("tls_in"), session.suite, &session.in) ||
      !tls::parse_secret(m.text("tls_out"), session.suite, &session.out) ||
      !m.number("tls_in_sequence", &session.in.sequence) ||
      !m.number("tls_out_sequence", &session.out.sequence)) {
    *error = "the connection's TLS came without its cipher, secrets or record numbers";
    return nullptr;
  }
  return tls::open_stream(socket, session, error);
}

std::unique_ptr<Endpoint> open_region(const process::Message& m, const SessionPlan& plan,
                                      int region, std::string* error) {
  struct stat st {};
  fstat(region, &st);
  uint64_t slot = 0, slots = 1;
  m.number("slot", &slot);
  m.number("slots", &slots);
  auto endpoint = make_shm_endpoint(region, static_cast<size_t>(st.st_size),
                                    static_cast<uint32_t>(slots), static_cast<uint32_t>(slot),
                                    plan.channel == "shm", wire::kArenaAddress, error);
  ::close(region);
  return endpoint;
}

}  // namespace

std::unique_ptr<Endpoint> open_endpoint(const process::Message& m, const SessionPlan& plan,
                                        RdmaPlan rdma, std::string* error) {
  const int socket = m.descriptor("socket"), region = m.descriptor("region");
  const bool by_rdma = plan.channel == "rdma";
  if ((plan.channel == "tcp" || plan.channel == "vsock" || by_rdma) && socket >= 0) {
    std::unique_ptr<channel::Stream> stream;
    if (!m.text("tls").empty() && !(stream = secure_stream(socket, m, error))) return nullptr;
    std::optional<channel::ResumableStream::Terms> terms;
    if (plan.network_grace_seconds > 0)
      terms = {plan.network_grace_seconds * kSecond, plan.closed_grace_seconds * kSecond};
    return make_tcp_endpoint(socket, std::move(stream), terms,
                             by_rdma ? std::optional(std::move(rdma)) : std::nullopt);
  }
  if ((plan.channel == "shm" || plan.channel == "ivshmem") && region >= 0)
    return open_region(m, plan, region, error);
  *error = "the channel \"" + plan.channel + "\" came without its descriptor";
  return nullptr;
}

std::unique_ptr<channel::ResumableStream::Connection> open_connection(const process::Message& m,
                                                                      std::string* error) {
  const int socket = m.descriptor("socket");
  if (socket < 0) {
    *error = "another connection came without its descriptor";
    return nullptr;
  }
  auto made = std::make_unique<channel::ResumableStream::Connection>(socket, nullptr);
  made->stream = m.text("tls").empty() ? std::make_unique<channel::PlainStream>(socket)
                                       : secure_stream(socket, m, error);
  return made->stream ? std::move(made) : nullptr;
}

}  // namespace sluice::worker
