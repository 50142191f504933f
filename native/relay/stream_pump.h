// SPDX-License-Identifier: Apache-2.0
// The two directions of a relayed session whose client has a connection to this host: a guest's, by
// vsock. A thread each reads on one side and writes on the other, which is the back pressure. The
// client answers for its own bytes: where the session outlives its connections it comes back by
// another of its own, for which another relay is started, so this one ends with either side.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "relay/carrier.h"

namespace sluice::relay {

class StreamPump : public Carrier {
 public:
  // `client`: the socket, ours. `ended` is called once, on whichever thread learns of the end, and
  // does not return in the relay itself.
  StreamPump(int client, std::string node, std::function<void(const process::End&)> ended);
  ~StreamPump() override;

  void carry(std::unique_ptr<channel::Stream> stream, int socket) override;
  // The session outlives its connections: `lost` is called in place of `ended` once one side is
  // gone, and told whether that was the client's.
  void outlive(std::function<void(bool by_client)> lost);
  // The opening reply goes to the client; false: it has left.
  bool open(std::span<const std::byte> reply);
  [[nodiscard]] bool start() override;
  // The client sees its connection end, and is told why when it asks for another.
  void end(const process::End& why, uint32_t error) override;
  void look() override;

 private:
  void up();
  void down();
  void over(bool by_client);

  const int client_socket_;
  channel::PlainStream client_;
  std::unique_ptr<channel::Stream> node_stream_;
  int node_socket_ = -1;
  const std::string node_;
  const std::function<void(const process::End&)> ended_;
  std::function<void(bool)> lost_;
  std::atomic<bool> client_gone_{false}, node_gone_{false}, over_{false};
};

}  // namespace sluice::relay
