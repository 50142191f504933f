// SPDX-License-Identifier: Apache-2.0
#include "client/nvml/session.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#include "client/core/config.h"

namespace sluice::nvml {

namespace {

std::atomic<uint32_t> g_starts{0};
std::atomic<const client::Config*> g_config{nullptr};  // read at the first start, and kept
std::atomic<const client::SessionInterface*> g_interface{nullptr};

// A device's handle is the address of its place here.
char g_handles[wire::kMaxDevices];

// libcuda.so.1 as it is loaded, or nullptr; it is loaded if `load`.
const client::SessionInterface* find_interface(bool load) {
  if (const client::SessionInterface* known = g_interface.load(std::memory_order_acquire))
    return known;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!library && load) {
    // The one beside this library, whatever the search path holds.
    Dl_info own{};
    std::string path = "libcuda.so.1";
    if (dladdr(g_handles, &own) && own.dli_fname) {
      const std::string self = own.dli_fname;
      path = self.substr(0, self.rfind('/') + 1) + path;
    }
    library = dlopen(path.c_str(), RTLD_NOW);
    if (!library) library = dlopen("libcuda.so.1", RTLD_NOW);
  }
  // The reference is kept: the table lies in that library.
  void* entry = library ? dlsym(library, "sluice_nvml_session") : nullptr;
  if (!entry) return nullptr;
  const auto* found = reinterpret_cast<decltype(&sluice_nvml_session)>(entry)();
  g_interface.store(found, std::memory_order_release);
  return found;
}

nvmlReturn_t of_cuda(CUresult e) {
  switch (e) {
    case CUDA_SUCCESS:
      return NVML_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY:
      return NVML_ERROR_INSUFFICIENT_RESOURCES;
    case CUDA_ERROR_NOT_INITIALIZED:  // a forked child
      return NVML_ERROR_UNKNOWN;
    default:  // the log says why there is no vGPU
      return NVML_ERROR_DRIVER_NOT_LOADED;
  }
}

nvmlReturn_t open(const client::SessionInterface** session) {
  *session = find_interface(true);
  if (!*session) return NVML_ERROR_DRIVER_NOT_LOADED;
  return (*session)->is_open() ? NVML_SUCCESS : of_cuda((*session)->open());
}

}  // namespace

void start() {
  if (!g_config.load()) {
    const client::Config* none = nullptr;
    auto* config = new client::Config(client::read_config());
    if (!g_config.compare_exchange_strong(none, config)) delete config;
  }
  g_starts.fetch_add(1);
}

nvmlReturn_t stop() {
  uint32_t starts = g_starts.load();
  do {
    if (starts == 0) return NVML_ERROR_UNINITIALIZED;
  } while (!g_starts.compare_exchange_weak(starts, starts - 1));
  return NVML_SUCCESS;
}

nvmlReturn_t enter() { return g_starts.load() ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED; }

nvmlReturn_t enter(nvmlDevice_t device, uint32_t* index) {
  if (const nvmlReturn_t e = enter(); e != NVML_SUCCESS) return e;
  const auto at = reinterpret_cast<uintptr_t>(device) - reinterpret_cast<uintptr_t>(g_handles);
  if (at >= device_count()) return NVML_ERROR_INVALID_ARGUMENT;
  *index = static_cast<uint32_t>(at);
  return NVML_SUCCESS;
}

nvmlReturn_t enter(const client::SessionInterface** session) {
  const nvmlReturn_t e = enter();
  return e == NVML_SUCCESS ? open(session) : e;
}

nvmlReturn_t enter(nvmlDevice_t device, uint32_t* place, const client::SessionInterface** session) {
  uint32_t index;
  if (const nvmlReturn_t e = enter(device, &index); e != NVML_SUCCESS) return e;
  if (!place_of(index, place)) return NVML_ERROR_NO_PERMISSION;
  if (const nvmlReturn_t e = open(session); e != NVML_SUCCESS) return e;
  // The session may have fewer than were asked for.
  return *place < (*session)->device_count() ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t enter(nvmlDevice_t device, const wire::DeviceRecord** record) {
  uint32_t place;
  const client::SessionInterface* session;
  if (const nvmlReturn_t e = enter(device, &place, &session); e != NVML_SUCCESS) return e;
  *record = session->device(place);
  return NVML_SUCCESS;
}

nvmlReturn_t unsupported() {
  const nvmlReturn_t e = enter();
  return e == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : e;
}

const client::SessionInterface* session_if_open() {
  const client::SessionInterface* session = find_interface(false);
  return session && session->is_open() ? session : nullptr;
}

uint32_t device_count() {
  const client::Config* config = g_config.load();
  if (!config) return 0;
  // Where some are hidden, the session has fewer than there are to count.
  const bool all = config->visible.size() == config->vgpu_count;
  const client::SessionInterface* session = all ? session_if_open() : nullptr;
  return std::min(session ? session->device_count() : config->vgpu_count, wire::kMaxDevices);
}

bool place_of(uint32_t index, uint32_t* place) {
  const auto& visible = g_config.load()->visible;
  const auto at = std::find(visible.begin(), visible.end(), index);
  *place = static_cast<uint32_t>(at - visible.begin());
  return at != visible.end();
}

nvmlDevice_t handle_of(uint32_t index) { return reinterpret_cast<nvmlDevice_t>(&g_handles[index]); }

nvmlDevice_t handle_at(uint32_t place) {
  const auto& visible = g_config.load()->visible;
  return handle_of(place < visible.size() ? visible[place] : place);
}

nvmlReturn_t put_text(const char* text, char* to, unsigned int room) {
  if (!to) return NVML_ERROR_INVALID_ARGUMENT;
  const size_t bytes = std::strlen(text) + 1;
  if (bytes > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(to, text, bytes);
  return NVML_SUCCESS;
}

void uuid_text(const uint8_t uuid[16], char (&to)[kUuidBytes]) {
  char* at = to + std::snprintf(to, sizeof to, "GPU-");
  for (int i = 0; i < 16; ++i) {
    const bool dash = i == 4 || i == 6 || i == 8 || i == 10;
    at += std::snprintf(at, static_cast<size_t>(to + sizeof to - at), dash ? "-%02x" : "%02x",
                        uuid[i]);
  }
}

}  // namespace sluice::nvml
