// SPDX-License-Identifier: Apache-2.0
#include "client/core/session.h"

#include <pthread.h>

#include <cstdlib>
#include <mutex>
#include <utility>

#include "client/core/end_notice.h"
#include "client/core/enter.h"
#include "client/core/log.h"
#include "client/core/open_channel.h"
#include "client/core/open_device.h"
#include "client/core/open_request.h"
#include "client/core/session_record.h"
#include "client/objects/array.h"
#include "client/objects/code.h"
#include "client/objects/context.h"
#include "client/objects/device.h"
#include "client/objects/event.h"
#include "client/objects/graph.h"
#include "client/objects/pool.h"
#include "client/objects/stream.h"

namespace sluice::client {

std::atomic<Session*> Session::current_{nullptr};
std::atomic<bool> Session::forked_{false};

namespace {

std::mutex g_open_mutex;
CUresult g_open_result = CUDA_ERROR_NOT_INITIALIZED;
bool g_open_tried = false;

}  // namespace

Session::Session(Config config) : config_(std::move(config)) {}
Session::~Session() = default;

CUresult Session::open() {
  if (forked_) return CUDA_ERROR_NOT_INITIALIZED;
  if (current_.load(std::memory_order_acquire)) return CUDA_SUCCESS;
  std::lock_guard lock(g_open_mutex);
  if (g_open_tried) return g_open_result;
  g_open_tried = true;
  static Session* session = new Session(read_config());  // lives until the process ends
  g_open_result = session->start();
  if (g_open_result == CUDA_SUCCESS) {
    become_current(session);
  }
  return g_open_result;
}

CUresult Session::start() {
  log_open(config_);
  Refusal refusal{config_.error};
  if (refusal.text.empty() && config_.visible.empty()) {
    // An empty list, -1 or a word is how GPUs are hidden; a number that is too high is a mistake.
    const std::string list = std::getenv("CUDA_VISIBLE_DEVICES");
    const bool meant = list.find_first_of("0123456789") != 0;
    log_line(meant ? LogLevel::kInfo : LogLevel::kError,
             "CUDA_VISIBLE_DEVICES=" + list + " leaves none of this process's " +
                 std::to_string(config_.vgpu_count) + " vGPU (SLUICE_VGPU), numbered from 0");
    return CUDA_ERROR_NO_DEVICE;
  }
  const wire::OpenSession request = make_request(config_);
  if (refusal.text.empty()) channel_ = open_channel(config_, request, &refusal);
  if (channel_ && begin(&refusal.text)) return CUDA_SUCCESS;
  log_line(LogLevel::kError, "no vGPU: " + refusal.text);
  return static_cast<CUresult>(refusal.status);
}

bool Session::adopt_for_test(std::unique_ptr<Channel> channel, std::string* error) {
  static Session* session = new Session(Config{});
  session->channel_ = std::move(channel);
  if (!session->begin(error)) return false;
  g_open_tried = true;
  g_open_result = CUDA_SUCCESS;
  become_current(session);
  return true;
}

void Session::become_current(Session* session) {
  // Channel, lanes and arena belong to the parent. A child of fork() learns what native CUDA says,
  // from every call: it has not even the arena's pages.
  pthread_atfork(nullptr, nullptr, [] {
    forked_ = true;
    current_.store(nullptr, std::memory_order_release);
  });
  current_.store(session, std::memory_order_release);
}

bool Session::begin(std::string* error) {
  if (!open_devices(error)) {
    channel_.reset();
    return false;
  }
  lanes_ = std::make_unique<LaneUse[]>(channel_->lane_count());
  marks_.open(channel_->marks());
  host_memory_.open(channel_->arena(), &marks_, [this](uint64_t address, uint64_t bytes) {
    return post(wire::kArenaRegister, wire::ArenaRegister{address, bytes}) == CUDA_SUCCESS;
  });
  return true;
}

bool Session::open_devices(std::string* error) {
  SessionRecord record;
  if (!read_session_record(channel_->open_reply(), &record, error)) return false;
  record_ = record.session;
  node_keeps_code = record_.keeps_code != 0;
  for (const wire::DeviceRecord& each : record.devices) {
    const auto index = static_cast<uint32_t>(devices_.size());
    auto device = open_device(this, index, each, record_.shares_memory != 0, error);
    if (!device) return false;
    spans_nodes_ |= device->place.node != 0;
    devices_.push_back(std::move(device));
  }
  channel_->current_device = [this]() -> uint32_t {
    const ThreadState& thread = thread_state();
    const Context* c = thread.depth ? contexts.find(thread.contexts[thread.depth - 1]) : nullptr;
    return c ? c->device->index : Channel::kNoDevice;
  };
  channel_->on_library_memory = [this](const wire::LibraryMemory& m) {
    if (m.device < devices_.size()) devices_[m.device]->memory.note_libraries(m.order, m.bytes);
  };
  channel_->on_link_lost = [this](uint32_t node, uint64_t peer) {
    if (peer < devices_.size()) node_links.lost(node, *devices_[peer]);
  };
  return true;
}

std::vector<Device*> Session::one_of_each_node() {
  std::vector<Device*> found;
  uint32_t last = ~0u;
  for (const auto& device : devices_) {
    if (std::exchange(last, device->place.node) == device->place.node) continue;
    if (!spans_nodes_ || !channel_->node_error(context_of(*device))) found.push_back(device.get());
  }
  if (found.empty()) found.push_back(devices_[0].get());
  return found;
}

void Session::after_synchronisation(Device& device) {
  device.pools.after_synchronisation();
  host_pools.after_synchronisation();
  imported_pools.after_synchronisation();
  managed.after_wait();
}

void Session::close() {
  if (forked_) return;
  if (config_.stats) print_statistics();
  g_said_good_bye = true;
  channel_->close();
}

void Session::print_statistics() {
  statistics_.print(channel_->bytes_out, answers.hits());
  if (config_.options.merge_launches == "off") return;
  wire::MergeFigures all{};
  for (const Device* device : one_of_each_node()) {
    wire::MergeFigures node{};
    if (ask(*device, wire::kMergeFigures, wire::MergeFiguresAsk{}, &node) != CUDA_SUCCESS) continue;
    all.replayed += node.replayed;
    all.graphs += node.graphs;
    all.known |= node.known;
    for (size_t i = 0; i < std::size(all.left); ++i) all.left[i] += node.left[i];
  }
  if (all.known) Statistics::print_merged(all);
}

namespace {
struct CloseAtExit {
  ~CloseAtExit() {
    if (Session* s = Session::get()) s->close();
  }
} close_at_exit;
}  // namespace

}  // namespace sluice::client
