// SPDX-License-Identifier: Apache-2.0
// Opening a session over vsock: the guest's own host is asked on a port of its own, and the same
// connection carries the session. The host knows who asks by the device; when the program ends, the
// guest's kernel closes the connection, so that nobody has to watch it.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

// Behind the socket's headers, which it needs.
#include <linux/vm_sockets.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "channel/dial.h"
#include "channel/opening.h"
#include "client/core/open_channel.h"
#include "client/core/resume.h"
#include "client/core/stream_channel.h"
#include "client/core/view.h"

namespace sluice::client {

namespace {

// hypervisor/vsock.py gives these CIDs and names the same port.
constexpr unsigned kFirstCid = 0x53400000, kLastCid = 0x534fffff;
constexpr unsigned kPort = 9960, kBellPort = 9961;
constexpr timeval kConnectTime{5, 0}, kBellTime{0, 500'000};
constexpr int kAnswerSeconds = 120;  // a worker may have to be started first
constexpr int kViewSeconds = 15;     // nothing has to be
constexpr size_t kKeyBytes = 24;     // random; the key is their hexadecimal digits

int connect_to_host(unsigned port, timeval most, std::string* error) {
  const int s = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (s < 0) {
    *error = std::string("this kernel has no vsock: ") + std::strerror(errno) +
             " (modprobe vmw_vsock_virtio_transport)";
    return -1;
  }
  setsockopt(s, AF_VSOCK, SO_VM_SOCKETS_CONNECT_TIMEOUT, &most, sizeof most);
  sockaddr_vm host{};
  host.svm_family = AF_VSOCK;
  host.svm_cid = VMADDR_CID_HOST;
  host.svm_port = port;
  if (connect(s, reinterpret_cast<sockaddr*>(&host), sizeof host) == 0) return s;
  *error = std::string("the host does not answer on vsock port 9960: ") + std::strerror(errno) +
           "; does sluice-server run there, and has this machine's VM channel='vsock'?";
  ::close(s);
  return -1;
}

// By which the session goes on after a break. Empty: the machine has no random numbers yet.
std::string new_key() {
  uint8_t random[kKeyBytes];
  if (getrandom(random, sizeof random, 0) != sizeof random) return {};
  std::string key;
  for (const uint8_t each : random)
    for (const int digit : {each >> 4, each & 15}) key += "0123456789abcdef"[digit];
  return key;
}

NewConnection connect_again(std::string* error) {
  const int s = connect_to_host(kPort, kConnectTime, error);
  if (s < 0) return nullptr;
  return std::make_unique<channel::ResumableStream::Connection>(
      s, std::make_unique<channel::PlainStream>(s));
}

}  // namespace

bool find_vsock(std::string* why) {
  const int device = open("/dev/vsock", O_RDONLY | O_CLOEXEC);
  if (device < 0) {
    *why = std::string("no vsock: /dev/vsock: ") + std::strerror(errno);
    return false;
  }
  unsigned cid = VMADDR_CID_ANY;
  const bool told = ioctl(device, IOCTL_VM_SOCKETS_GET_LOCAL_CID, &cid) == 0;
  ::close(device);
  if (told && kFirstCid <= cid && cid <= kLastCid) return true;
  *why = "this machine has no vsock device of Sluice's";
  return false;
}

int open_vsock_bell() {
  std::string ignored;
  return find_vsock(&ignored) ? connect_to_host(kBellPort, kBellTime, &ignored) : -1;
}

bool view_vsock(wire::OpenSession request, const RequestOptions& options, std::string* text,
                Refusal* refusal) {
  request.channel = wire::ChannelKind::kVsock;
  const int s = connect_to_host(kPort, kConnectTime, &refusal->text);
  if (s < 0) return false;
  channel::set_patience(s, kViewSeconds);
  channel::PlainStream stream(s);
  const std::vector<std::byte> frame = open_frame(request, options);
  iovec part{const_cast<std::byte*>(frame.data()), frame.size()};
  std::vector<std::byte> reply(sizeof(wire::OpenReply));
  size_t got = 0;
  if (stream.write(&part, 1) && channel::read_exact(&stream, reply.data(), reply.size())) {
    got = reply.size();
    wire::FrameHeader header;
    std::memcpy(&header, reply.data(), sizeof header);
    if (header.size > got && header.size - got <= wire::kMaxViewBytes) {
      reply.resize(header.size);
      if (channel::read_exact(&stream, reply.data() + got, reply.size() - got)) got = reply.size();
    }
  }
  ::close(s);
  return read_view(reply.data(), got, "sluice-server on this machine's host", text, refusal);
}

std::unique_ptr<Channel> open_vsock(wire::OpenSession request, const RequestOptions& options,
                                    Refusal* refusal) {
  request.channel = wire::ChannelKind::kVsock;
  const int s = connect_to_host(kPort, kConnectTime, &refusal->text);
  if (s < 0) return nullptr;
  const std::string key = new_key();
  static_assert(sizeof request.key > 2 * kKeyBytes);
  std::memcpy(request.key, key.data(), key.size());
  if (key.empty()) request.flags &= ~static_cast<uint32_t>(wire::kResumable);
  channel::set_patience(s, kAnswerSeconds);
  auto stream = std::make_unique<channel::PlainStream>(s);
  const std::vector<std::byte> frame = open_frame(request, options);
  const bool quiet = request.flags & wire::kHoldJob;
  const auto waits = [s, quiet](const char* line) {
    channel::set_patience(s, 0);  // a place in the queue may last
    if (!quiet) std::fprintf(stderr, "sluice: %s\n", line);
  };
  channel::Opened opened;
  if (channel::open_over(stream.get(), frame, "sluice-server on this machine's host", &opened,
                         waits)) {
    channel::set_patience(s, 0);
    wire::OpenReply reply;
    std::memcpy(&reply, opened.reply.data(), sizeof reply);
    if (reply.network_grace_seconds == 0)
      return std::make_unique<StreamChannel>(s, std::move(stream), std::move(opened.reply));
    const SessionProof session{reply.session_id, key};
    return std::make_unique<StreamChannel>(
        std::make_unique<channel::ResumableStream>(
            std::make_unique<channel::ResumableStream::Connection>(s, std::move(stream)),
            terms_of(reply.network_grace_seconds)),
        std::move(opened.reply),
        [session](channel::ResumableStream* resumable, std::string* trouble) {
          return resume_by(connect_again, session, resumable, trouble);
        });
  }
  refusal->text = opened.error;
  if (opened.status) refusal->status = opened.status;
  stream.reset();
  ::close(s);
  return nullptr;
}

}  // namespace sluice::client
