// SPDX-License-Identifier: Apache-2.0
// An RDMA device of this machine, opened, with the port and the GID that connections use. What is
// not named is chosen: the first device with a port that is up, and on Ethernet the GID of RoCE v2
// that belongs to an IPv4 address, else to a routable IPv6 one, else the first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

struct ibv_context;

namespace sluice::channel {

struct Verbs;

struct RdmaChoice {
  std::string device;  // "": the first that will do
  uint32_t port = 0;   // 0: the first that is up
  int gid = -1;        // index in the port's table; -1: chosen
};

// NAME[:PORT[:GID]], as sluice-worker has it on its command line. False: it is none.
bool read_rdma_choice(const std::string& text, RdmaChoice* choice);

class RdmaDevice {
 public:
  // nullptr with `error`: what was looked for, what was found, what to do.
  static std::shared_ptr<RdmaDevice> open(const RdmaChoice& choice, std::string* error);
  // Whether this machine has any RDMA device, without opening one or loading anything.
  static bool any(std::string* why_not);

  RdmaDevice(const Verbs& verbs, ibv_context* context) : verbs_(verbs), context_(context) {}
  ~RdmaDevice();
  RdmaDevice(const RdmaDevice&) = delete;

  // Whether its port carries data now. A system call.
  bool is_up() const;
  // Whether the kernel still has it. One that it takes away may wait until nobody has it open any
  // more, as soft RoCE's does: who keeps it for later asks now and then.
  bool is_there() const;

  const Verbs& verbs() const { return verbs_; }
  ibv_context* context() const { return context_; }
  const std::string& name() const { return name_; }
  uint8_t port() const { return port_; }
  uint8_t gid_index() const { return gid_index_; }
  const uint8_t* gid() const { return gid_; }
  uint16_t lid() const { return lid_; }
  uint32_t mtu() const { return mtu_; }  // ibv_mtu

 private:
  bool choose_port(const RdmaChoice& choice, std::string* error);
  bool choose_gid(int wanted, std::string* error);

  const Verbs& verbs_;
  ibv_context* const context_;
  std::string name_;
  uint8_t port_ = 0, gid_index_ = 0;
  uint8_t gid_[16] = {};
  uint16_t lid_ = 0;
  uint32_t mtu_ = 0;
};

}  // namespace sluice::channel
