// SPDX-License-Identifier: Apache-2.0
#include "relay/stream_pump.h"

#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "channel/futex.h"
#include "channel/thread.h"

namespace sluice::relay {

using wire::EndCause;

namespace {

constexpr size_t kAtOnce = 256 << 10;
// For the node to end what its client has closed, and for a client to leave whose session has
// ended: whose end it was is known only when both are there.
constexpr uint64_t kGoodbyeNs = 1'500'000'000, kLeaveNs = 100'000'000;

bool wait_for(const std::atomic<bool>& said, uint64_t most_ns) {
  for (const uint64_t start = channel::now_ns(); !said; channel::sleep_ns(1'000'000))
    if (channel::now_ns() - start > most_ns) return false;
  return true;
}

// Until one side ends: true where that is the side that is read.
bool pass_on(channel::Stream* from, channel::Stream* to, std::atomic<uint64_t>* count) {
  std::vector<std::byte> buffer(kAtOnce);
  for (;;) {
    const iovec whole{buffer.data(), buffer.size()};
    const ssize_t got = from->read(&whole, 1);
    if (got <= 0) return true;
    // Counted first: who has had the bytes may ask at once how many there were.
    count->fetch_add(static_cast<size_t>(got), std::memory_order_relaxed);
    iovec part{buffer.data(), static_cast<size_t>(got)};
    if (!to->write(&part, 1)) return false;
  }
}

}  // namespace

StreamPump::StreamPump(int client, std::string node, std::function<void(const process::End&)> ended)
    : client_socket_(client), client_(client), node_(std::move(node)), ended_(std::move(ended)) {}

StreamPump::~StreamPump() { ::close(client_socket_); }

void StreamPump::carry(std::unique_ptr<channel::Stream> stream, int socket) {
  node_stream_ = std::move(stream);
  node_socket_ = socket;
}

void StreamPump::outlive(std::function<void(bool)> lost) { lost_ = std::move(lost); }

bool StreamPump::open(std::span<const std::byte> reply) {
  iovec part{const_cast<std::byte*>(reply.data()), reply.size()};
  return client_.write(&part, 1);
}

bool StreamPump::start() {
  return channel::start_detached("down", [this] { down(); }) &&
         channel::start_detached("up", [this] { up(); });
}

void StreamPump::up() {
  client_gone_ = pass_on(&client_, node_stream_.get(), &bytes_in_);
  // What the node says last is still carried, and it may end the session by itself.
  node_stream_->finish();
  wait_for(node_gone_, kGoodbyeNs);
  over(client_gone_);
}

void StreamPump::down() {
  node_gone_ = pass_on(node_stream_.get(), &client_, &bytes_out_);
  if (!node_gone_) return over(true);
  client_.finish();
  wait_for(client_gone_, kLeaveNs);
  over(client_gone_);
}

void StreamPump::over(bool by_client) {
  if (over_.exchange(true)) return;
  if (lost_) return lost_(by_client);
  ended_(by_client ? process::End{EndCause::kClientEnded, "the client closed its session"}
                   : process::End{EndCause::kNodeLost, "the connection to " + node_ +
                                                           " was lost: its worker ended, or the "
                                                           "node went down"});
}

void StreamPump::end(const process::End& why, uint32_t /*error*/) {
  if (over_.exchange(true)) return;
  shutdown(client_socket_, SHUT_RDWR);
  if (node_socket_ >= 0) shutdown(node_socket_, SHUT_RDWR);
  ended_(why);
}

void StreamPump::look() {
  if (node_socket_ < 0 || over_) return;
  if (channel::unheard_of(node_socket_, lost_ ? channel::kSilentMs : kUnheardMs))
    shutdown(node_socket_, SHUT_RDWR);
}

}  // namespace sluice::relay
