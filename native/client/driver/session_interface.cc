// SPDX-License-Identifier: Apache-2.0
// What libnvidia-ml.so.1 gets to know of the session; see client/nvml/session_interface.h.
#include "client/nvml/session_interface.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <span>

#include "client/core/session.h"
#include "client/core/view.h"
#include "client/objects/device.h"

using namespace sluice::client;

namespace {

Device& device_at(uint32_t index) { return *Session::get()->devices()[index]; }

// A program that asks for one figure after another gets them of one moment.
bool figures_of(uint32_t index, sluice::wire::GpuFigures* figures) {
  using Clock = std::chrono::steady_clock;
  static constexpr auto kFreshFor = std::chrono::milliseconds(100);
  struct Kept {
    Clock::time_point at;
    sluice::wire::GpuFigures figures;
  };
  static auto* const mutex = new std::mutex;
  static auto* const kept = new std::map<uint32_t, Kept>;
  {
    std::lock_guard lock(*mutex);
    const auto it = kept->find(index);
    if (it != kept->end() && Clock::now() - it->second.at < kFreshFor) {
      *figures = it->second.figures;
      return true;
    }
  }
  *figures = {};
  const CUresult e =
      Session::get()->ask(device_at(index), sluice::wire::kGpuFigures,
                          sluice::wire::GpuFiguresAsk{device_at(index).place.index, 0}, figures);
  if (e != CUDA_SUCCESS) return false;
  std::lock_guard lock(*mutex);
  (*kept)[index] = {Clock::now(), *figures};
  return true;
}

const SessionInterface kInterface = {
    [] { return Session::get() != nullptr; },
    [] { return Session::open(); },
    [] { return static_cast<uint32_t>(Session::get()->devices().size()); },
    [](uint32_t index) -> const sluice::wire::DeviceRecord* { return &device_at(index).record; },
    [](uint32_t index, uint64_t* free, uint64_t* total) {
      device_at(index).memory.info(free, total);
    },
    [](uint32_t index) {
      return device_at(index).memory.used() != 0 || device_at(index).primary_uses.load() > 0;
    },
    [] { return Session::get()->record().driver_name; },
    [] { return std::min(Session::get()->record().driver_version, 13000u); },
    figures_of,
    [](uint32_t index) { return device_at(index).memory.used(); },
    [](void (*take)(void*, const char*, size_t), void* to, char* why, size_t room) {
      std::string text;
      Refusal refusal;
      const bool shown = ask_for_view(read_config(), &text, &refusal);
      if (shown)
        take(to, text.data(), text.size());
      else
        std::snprintf(why, room, "%s", refusal.text.c_str());
      return shown;
    },
};

}  // namespace

const SessionInterface* sluice_nvml_session() { return &kInterface; }
