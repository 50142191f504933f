// SPDX-License-Identifier: Apache-2.0
#include "client/nvml/session.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

#include "client/core/config.h"

namespace sluice::nvml {

namespace {

std::atomic<uint32_t> g_starts{0};
std::atomic<bool> g_looks{false};        // whatever is loaded
std::atomic<bool> g_loaded_cuda{false};  // libcuda.so.1 is here since this library needed it
std::atomic<const client::Config*> g_config{nullptr};  // read at the first start, and kept
std::atomic<const client::SessionInterface*> g_interface{nullptr};

// A device's handle is the address of its place here.
char g_handles[wire::kMaxDevices];

using Uuid = std::array<uint8_t, 16>;

// The last that was told of each while there was no session; none is all zeros.
struct ToldUuids {
  std::mutex mutex;
  Uuid of[wire::kMaxDevices]{};
};
ToldUuids& told_uuids() {
  static auto* const told = new ToldUuids;  // asked while the process ends, too
  return *told;
}

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
    if (library) g_loaded_cuda = true;
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

bool is_loaded(const char* name) {
  void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  if (library) dlclose(library);
  return library != nullptr;
}

const client::SessionInterface* session_if_open() {
  const client::SessionInterface* session = find_interface(false);
  return session && session->is_open() ? session : nullptr;
}

// Whether the process only looks. One with CUDA in it will compute, and is shown its own vGPUs.
bool only_looks() {
  if (session_if_open()) return false;
  if (g_looks) return true;
  return (g_loaded_cuda || !is_loaded("libcuda.so.1")) && !is_loaded("libcudart.so.13") &&
         !is_loaded("libcudart.so.12");
}

std::shared_ptr<const View> look() {
  const client::SessionInterface* found = find_interface(true);
  return found ? current_view(*found) : nullptr;
}

// The place of an index in the session; false for one that is hidden.
bool place_of(uint32_t index, uint32_t* place) {
  const auto& visible = g_config.load()->visible;
  const auto at = std::find(visible.begin(), visible.end(), index);
  *place = static_cast<uint32_t>(at - visible.begin());
  return at != visible.end();
}

// Which place of the array the handle is, which any of them may have had.
nvmlReturn_t index_of(nvmlDevice_t device, uint32_t* index) {
  if (const nvmlReturn_t e = enter(); e != NVML_SUCCESS) return e;
  const auto at = reinterpret_cast<uintptr_t>(device) - reinterpret_cast<uintptr_t>(g_handles);
  if (at >= wire::kMaxDevices) return NVML_ERROR_INVALID_ARGUMENT;
  *index = static_cast<uint32_t>(at);
  return NVML_SUCCESS;
}

}  // namespace

void start(bool looks) {
  if (!g_config.load()) {
    const client::Config* none = nullptr;
    auto* config = new client::Config(client::read_config());
    if (!g_config.compare_exchange_strong(none, config)) delete config;
  }
  if (looks) g_looks = true;
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
  if (const nvmlReturn_t e = index_of(device, index); e != NVML_SUCCESS) return e;
  return *index < device_count() ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t peek(Vgpus* vgpus) {
  if (const nvmlReturn_t e = enter(); e != NVML_SUCCESS) return e;
  vgpus->session = session_if_open();
  if (!vgpus->session && only_looks()) vgpus->view = look();
  return NVML_SUCCESS;
}

nvmlReturn_t enter(Vgpus* vgpus) {
  if (const nvmlReturn_t e = peek(vgpus); e != NVML_SUCCESS) return e;
  if (vgpus->session || vgpus->view) return NVML_SUCCESS;
  if (only_looks()) return NVML_ERROR_DRIVER_NOT_LOADED;  // the log says why
  vgpus->session = find_interface(true);
  if (!vgpus->session) return NVML_ERROR_DRIVER_NOT_LOADED;
  return vgpus->session->is_open() ? NVML_SUCCESS : of_cuda(vgpus->session->open());
}

nvmlReturn_t peek(nvmlDevice_t device, Vgpu* vgpu) {
  uint32_t index;
  if (const nvmlReturn_t e = index_of(device, &index); e != NVML_SUCCESS) return e;
  if (const nvmlReturn_t e = peek(vgpu); e != NVML_SUCCESS) return e;
  vgpu->place = index;
  if (vgpu->view) return index < vgpu->count() ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
  if (index >= device_count()) return NVML_ERROR_INVALID_ARGUMENT;
  if (!place_of(index, &vgpu->place) ||
      (vgpu->session && vgpu->place >= vgpu->session->device_count()))
    vgpu->session = nullptr;  // it has none such
  return NVML_SUCCESS;
}

nvmlReturn_t enter(nvmlDevice_t device, Vgpu* vgpu) {
  if (const nvmlReturn_t e = peek(device, vgpu); e != NVML_SUCCESS) return e;
  if (vgpu->view) return NVML_SUCCESS;
  uint32_t index = 0;
  if (const nvmlReturn_t e = index_of(device, &index); e != NVML_SUCCESS) return e;
  if (!only_looks() && !place_of(index, &vgpu->place)) return NVML_ERROR_NO_PERMISSION;
  const uint32_t place = vgpu->place;
  if (const nvmlReturn_t e = enter(static_cast<Vgpus*>(vgpu)); e != NVML_SUCCESS) return e;
  // The session may have fewer than were asked for.
  return place < vgpu->count() ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

uint32_t Vgpus::count() const {
  return session ? session->device_count() : view ? static_cast<uint32_t>(view->vgpus.size()) : 0;
}

const wire::DeviceRecord& Vgpus::record(uint32_t place) const {
  return session ? *session->device(place) : view->vgpus[place].record;
}

nvmlDevice_t Vgpus::handle(uint32_t place) const {
  const auto& visible = g_config.load()->visible;
  return handle_of(session && place < visible.size() ? visible[place] : place);
}

nvmlReturn_t unsupported() {
  const nvmlReturn_t e = enter();
  return e == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : e;
}

uint32_t device_count() {
  const client::Config* config = g_config.load();
  if (!config) return 0;
  if (only_looks())
    if (const std::shared_ptr<const View> view = look())
      return static_cast<uint32_t>(view->vgpus.size());
  // Where some are hidden, the session has fewer than there are to count.
  const bool all = config->visible.size() == config->vgpu_count;
  const client::SessionInterface* session = all ? session_if_open() : nullptr;
  return std::min(session ? session->device_count() : config->vgpu_count, wire::kMaxDevices);
}

nvmlDevice_t handle_of(uint32_t index) { return reinterpret_cast<nvmlDevice_t>(&g_handles[index]); }

void remember_uuid(uint32_t index, const uint8_t uuid[16]) {
  ToldUuids& told = told_uuids();
  std::lock_guard lock(told.mutex);
  if (index < wire::kMaxDevices) std::copy_n(uuid, 16, told.of[index].begin());
}

uint32_t index_told(const std::function<bool(const uint8_t uuid[16])>& match) {
  const uint32_t count = device_count();
  ToldUuids& told = told_uuids();
  std::lock_guard lock(told.mutex);
  for (uint32_t i = 0; i < count; ++i)
    if (told.of[i] != Uuid{} && match(told.of[i].data())) return i;
  return count;
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
