// SPDX-License-Identifier: Apache-2.0
#include "channel/rdma_device.h"

#include <dirent.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "channel/rdma_verbs.h"
#include "whole_number.h"

namespace sluice::channel {

namespace {

constexpr const char* kDevices = "/sys/class/infiniband";
constexpr int kMostGids = 256;

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// Of a GID on Ethernet, the more the better; 0: it does not do.
int worth(const uint8_t* gid, const std::string& type) {
  static constexpr uint8_t kNone[16] = {};
  static constexpr uint8_t kOfIpv4[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (type != "RoCE v2" || std::memcmp(gid, kNone, sizeof kNone) == 0) return 0;
  if (std::memcmp(gid, kOfIpv4, sizeof kOfIpv4) == 0) return 3;
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80 ? 1 : 2;  // of the link only
}

}  // namespace

bool read_rdma_choice(const std::string& text, RdmaChoice* choice) {
  const size_t port = text.find(':');
  choice->device = text.substr(0, port);
  if (choice->device.find_first_of("/ ") != std::string::npos) return false;
  if (port == std::string::npos) return true;
  const size_t gid = text.find(':', port + 1);
  uint64_t number = 0;
  if (!read_whole_number(text.substr(port + 1, gid == std::string::npos ? gid : gid - port - 1),
                         &number) ||
      number > 255)
    return false;
  choice->port = static_cast<uint32_t>(number);
  if (gid == std::string::npos) return true;
  if (!read_whole_number(text.substr(gid + 1), &number) || number >= kMostGids) return false;
  choice->gid = static_cast<int>(number);
  return true;
}

bool RdmaDevice::any(std::string* why_not) {
  *why_not = "no RDMA device (/sys/class/infiniband has none)";
  DIR* folder = opendir(kDevices);
  if (!folder) return false;
  bool found = false;
  while (const dirent* entry = readdir(folder)) found |= entry->d_name[0] != '.';
  closedir(folder);
  return found;
}

RdmaDevice::~RdmaDevice() { verbs_.ibv_close_device(context_); }

std::shared_ptr<RdmaDevice> RdmaDevice::open(const RdmaChoice& choice, std::string* error) {
  const Verbs* v = Verbs::get(error);
  if (!v) return nullptr;
  int count = 0;
  ibv_device** const devices = v->ibv_get_device_list(&count);
  std::shared_ptr<RdmaDevice> found;
  std::string names, why;
  for (int i = 0; devices && i < count && !found; ++i) {
    const std::string name = v->ibv_get_device_name(devices[i]);
    names += (names.empty() ? "" : ", ") + name;
    if (!choice.device.empty() && name != choice.device) continue;
    ibv_context* const context = v->ibv_open_device(devices[i]);
    if (!context) {
      why += (why.empty() ? "" : "; ") + name + " cannot be opened (" + std::strerror(errno) +
             "): its file in /dev/infiniband must be open to this user";
      continue;
    }
    auto opened = std::make_shared<RdmaDevice>(*v, context);
    opened->name_ = name;
    std::string trouble;
    if (opened->choose_port(choice, &trouble) && opened->choose_gid(choice.gid, &trouble))
      found = opened;
    else
      why += (why.empty() ? "" : "; ") + name + ": " + trouble;
  }
  if (devices) v->ibv_free_device_list(devices);
  if (found) return found;
  if (!why.empty())
    *error = why;
  else if (names.empty())
    *error = "there is no RDMA device that libibverbs knows here (rdma link shows them)";
  else
    *error = "there is no RDMA device " + choice.device + " here, but " + names;
  return nullptr;
}

bool RdmaDevice::is_up() const {
  ibv_port_attr attributes{};
  return (verbs_.ibv_query_port)(context_, port_,
                                 reinterpret_cast<_compat_ibv_port_attr*>(&attributes)) == 0 &&
         attributes.state == IBV_PORT_ACTIVE;
}

bool RdmaDevice::is_there() const { return access(context_->device->dev_path, F_OK) == 0; }

bool RdmaDevice::choose_port(const RdmaChoice& choice, std::string* error) {
  const uint32_t first = choice.port ? choice.port : 1, last = choice.port ? choice.port : 8;
  bool any = false;
  for (uint32_t port = first; port <= last; ++port) {
    ibv_port_attr attributes{};
    // The macro of this name would ask the device's own table, which has more than is wanted here.
    if ((verbs_.ibv_query_port)(context_, static_cast<uint8_t>(port),
                                reinterpret_cast<_compat_ibv_port_attr*>(&attributes)) != 0)
      continue;
    any = true;
    if (attributes.state != IBV_PORT_ACTIVE) continue;
    port_ = static_cast<uint8_t>(port);
    lid_ = attributes.lid;
    mtu_ = attributes.active_mtu;
    return true;
  }
  *error = any ? (choice.port ? "its port " + std::to_string(choice.port) + " is down"
                              : std::string("none of its ports is up"))
               : "it has no port " + std::to_string(first);
  return false;
}

bool RdmaDevice::choose_gid(int wanted, std::string* error) {
  const std::string folder =
      std::string(kDevices) + "/" + name_ + "/ports/" + std::to_string(port_);
  const bool ethernet = first_line(folder + "/link_layer") == "Ethernet";
  int best = 0;
  for (int i = wanted >= 0 ? wanted : 0; i < kMostGids; ++i) {
    union ibv_gid gid {};
    if (verbs_.ibv_query_gid(context_, port_, i, &gid) != 0) break;
    const int w = ethernet && wanted < 0
                      ? worth(gid.raw, first_line(folder + "/gid_attrs/types/" + std::to_string(i)))
                      : 4;
    if (w > best) {
      best = w;
      gid_index_ = static_cast<uint8_t>(i);
      std::memcpy(gid_, gid.raw, sizeof gid_);
    }
    if (best >= 3) break;
  }
  static constexpr uint8_t kNone[16] = {};
  if (best > 0 && std::memcmp(gid_, kNone, sizeof kNone) != 0) return true;
  *error = wanted >= 0
               ? "its port " + std::to_string(port_) + " has no GID " + std::to_string(wanted)
               : "its port " + std::to_string(port_) +
                     " has no GID of RoCE v2: give its network interface an address";
  return false;
}

}  // namespace sluice::channel
