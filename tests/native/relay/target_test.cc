// SPDX-License-Identifier: Apache-2.0
// What a relay presents to the GPU's node of what its client wrote into the slot.
#include "relay/target.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

#include "wire/frame.h"
#include "wire/protocol.h"

namespace sluice::relay {
namespace {

// A node's data port that hears one request and refuses it.
class Node {
 public:
  Node() : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size);
    port_ = ntohs(at.sin_port);
    serving_ = std::thread([this] {
      const int client = accept(listener_, nullptr, nullptr);
      recv(client, &heard_, sizeof heard_, MSG_WAITALL);
      wire::OpenReply reply{};
      reply.header = {sizeof reply, wire::kOpenReply, wire::kNoLane, 0, 0};
      reply.status = 801;
      std::strcpy(reply.message, "heard");
      send(client, &reply, sizeof reply, MSG_NOSIGNAL);
      close(client);
    });
  }
  ~Node() { close(listener_); }
  // What it heard.
  const wire::OpenSession& heard() {
    serving_.join();
    return heard_;
  }
  uint16_t port() const { return port_; }

 private:
  const int listener_;
  uint16_t port_ = 0;
  wire::OpenSession heard_{};
  std::thread serving_;
};

// Its bytes go through the slot: it cannot have the node wait for an RDMA answer of its own.
TEST(RelayTarget, AClientDoesNotSayThatItsRelayTakesRdma) {
  Node node;
  wire::OpenSession asked{};
  asked.header.size = sizeof asked;
  asked.magic = wire::kOpenMagic;
  asked.flags = wire::kTakesRdma | wire::kResumable;
  asked.vgpu_count = 3;
  Target target;
  target.node = "there";
  target.address = "127.0.0.1";
  target.port = std::to_string(node.port());
  target.request.resize(sizeof asked);
  std::memcpy(target.request.data(), &asked, sizeof asked);
  Connected connected;
  channel::Opened opened;
  EXPECT_FALSE(open_at(target, &connected, &opened));
  const wire::OpenSession& heard = node.heard();
  EXPECT_EQ(heard.flags, uint32_t{wire::kResumable});
  EXPECT_EQ(heard.vgpu_count, 3u);
  EXPECT_EQ(connected.socket, -1);
  EXPECT_NE(opened.error.find("heard"), std::string::npos) << opened.error;
}

}  // namespace
}  // namespace sluice::relay
