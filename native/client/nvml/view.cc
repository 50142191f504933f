// SPDX-License-Identifier: Apache-2.0
#include "client/nvml/view.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "client/core/json.h"
#include "client/core/log.h"
#include "whole_number.h"

namespace sluice::nvml {

namespace {

using Clock = std::chrono::steady_clock;
// A server that does not answer is not asked again by each of a hundred questions.
constexpr Clock::duration kFreshFor = std::chrono::milliseconds(250);
constexpr Clock::duration kAgainAfter = std::chrono::seconds(2);
constexpr uint64_t kMostMib = uint64_t{1} << 40;

uint64_t number(const client::JsonObject& from, const char* name, uint64_t most) {
  uint64_t value = 0;
  return read_whole_number(from.text(name), &value) ? std::min(value, most) : 0;
}

// "75=9 76=0": calls back with each pair of numbers.
template <class Take>
void each_pair(std::string_view text, Take take) {
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(pair.size() + 1, text.size()));
    const size_t at = pair.find('=');
    uint32_t key = 0;
    uint64_t value = 0;
    if (at != std::string_view::npos && read_whole_number(pair.substr(0, at), &key) &&
        read_whole_number(pair.substr(at + 1), &value))
      take(key, value);
  }
}

// "GPU-8-4-4-4-12"; what is no hexadecimal digit is left out.
void read_uuid(std::string_view text, uint8_t (&uuid)[16]) {
  if (text.starts_with("GPU-")) text.remove_prefix(4);
  size_t digits = 0;
  for (const char c : text) {
    static constexpr std::string_view kDigits = "0123456789abcdef";
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos || digits == 32) continue;
    uuid[digits / 2] = static_cast<uint8_t>(uuid[digits / 2] << 4 | digit);
    ++digits;
  }
}

template <size_t N>
void put(char (&to)[N], const std::string& from) {
  std::snprintf(to, N, "%s", from.c_str());
}

ViewedVgpu read_vgpu(const client::JsonObject& from) {
  ViewedVgpu v;
  put(v.record.name, from.text("name"));
  put(v.record.pci_bus_id, from.text("pci_bus_id"));
  read_uuid(from.text("uuid"), v.record.uuid);
  // Which card it is, is not told; vGPUs of one have the same number.
  v.record.physical_uuid[0] = static_cast<uint8_t>(number(from, "card", 255));
  v.record.memory_bytes = number(from, "memory_mib", kMostMib) << 20;
  v.record.compute_percent = static_cast<uint32_t>(number(from, "compute_percent", 100));
  v.record.attribute_count = wire::kDeviceAttributes;
  each_pair(from.text("attributes"), [&](uint32_t key, uint64_t value) {
    if (key < wire::kDeviceAttributes) v.record.attributes[key] = static_cast<int32_t>(value);
  });
  v.used_bytes = std::min(number(from, "used_mib", kMostMib) << 20, v.record.memory_bytes);
  v.driver_name = from.text("driver_name");
  v.cuda_version = static_cast<uint32_t>(number(from, "cuda_version", 99990));
  each_pair(from.text("figures"), [&](uint32_t key, uint64_t value) {
    if (key < std::size(v.figures.value) && key < 64)
      wire::set_figure(&v.figures, static_cast<wire::Figure>(key), value);
  });
  for (const client::JsonObject& p : from.objects("processes"))
    v.processes.push_back({static_cast<uint32_t>(number(p, "pid", 0xffffffff)), p.text("name"),
                           number(p, "used_mib", kMostMib) << 20});
  return v;
}

}  // namespace

View read_view(std::string_view json) {
  View view;
  const client::JsonObject whole(json);
  for (const client::JsonObject& vgpu : whole.objects("vgpus")) {
    if (view.vgpus.size() == wire::kMaxDevices) break;
    view.vgpus.push_back(read_vgpu(vgpu));
  }
  return view;
}

std::shared_ptr<const View> current_view(const client::SessionInterface& session) {
  struct Kept {
    std::mutex mutex;
    std::shared_ptr<const View> view;
    Clock::time_point good_until{};
  };
  static auto* const kept = new Kept;
  std::lock_guard lock(kept->mutex);
  if (Clock::now() < kept->good_until) return kept->view;
  std::string text;
  char why[512] = "";
  const auto take = [](void* to, const char* from, size_t bytes) {
    static_cast<std::string*>(to)->assign(from, bytes);
  };
  if (session.view(take, &text, why, sizeof why)) {
    kept->view = std::make_shared<const View>(read_view(text));
  } else {
    client::log_once(client::LogLevel::kError, std::string("no vGPU can be shown: ") + why);
    kept->view = nullptr;
  }
  kept->good_until = Clock::now() + (kept->view ? kFreshFor : kAgainAfter);
  return kept->view;
}

}  // namespace sluice::nvml
