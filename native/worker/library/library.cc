// SPDX-License-Identifier: Apache-2.0
#include "worker/library/library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include "process/log.h"
#include "wire/frame.h"

namespace sluice::worker {

namespace {

std::vector<std::string>& search_path() {
  static std::vector<std::string> folders;
  return folders;
}

std::string where(void* handle) {
  link_map* map = nullptr;
  return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map ? map->l_name : "?";
}

}  // namespace

void Libraries::set_path(const std::vector<std::string>& folders) { search_path() = folders; }

Libraries& Libraries::get() {
  static Libraries* all = new Libraries;
  return *all;
}

Libraries::Libraries() : tables_(library_tables()) {
  for (const LibraryTable& t : tables_)
    for (uint16_t i = 0; i < t.spec->count; ++i)
      count_ = std::max<size_t>(count_, t.spec->functions[i].id + 1u - wire::kFirstLibraryFunction);
  entries_ = std::make_unique<Entry[]>(count_);
  for (const LibraryTable& t : tables_) {
    for (uint16_t i = 0; i < t.spec->count; ++i) {
      Entry& e = entries_[t.spec->functions[i].id - wire::kFirstLibraryFunction];
      e.table = &t;
      e.spec = &t.spec->functions[i];
      e.thunk = t.thunks[i];
    }
  }
}

Libraries::Entry* Libraries::find(uint16_t id) {
  const size_t index = size_t{id} - wire::kFirstLibraryFunction;
  return index < count_ && entries_[index].spec ? &entries_[index] : nullptr;
}

void OpaqueBytes::add(std::span<const std::byte> bytes) {
  std::lock_guard lock(mutex_);
  const auto [it, fresh] = all_.emplace(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!fresh) return;
  order_.push_back(&*it);
  if (order_.size() <= kMost) return;
  all_.erase(*order_.front());
  order_.pop_front();
}

bool OpaqueBytes::has(std::span<const std::byte> bytes) const {
  std::lock_guard lock(mutex_);
  return all_.contains({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// Under the mutex. Keeps what it found, nullptr too.
void* Libraries::open(const std::string& soname) {
  for (const auto& [name, handle] : open_)
    if (name == soname) return handle;
  void* handle = nullptr;
  std::string tried;
  for (const std::string& folder : search_path()) {
    const std::string path = folder + "/" + soname;
    if (access(path.c_str(), F_OK) != 0) continue;
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle) break;
    tried += std::string("; ") + dlerror();
  }
  if (!handle) {
    handle = dlopen(soname.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!handle) tried += std::string("; ") + dlerror();
  }
  if (handle)
    process::log_info("took " + where(handle) + " for " + soname);
  else
    process::log_error("there is no " + soname + " on this node" + tried +
                       ". Install it, or name its folder in server.conf ([server] cuda_libraries)");
  open_.emplace_back(soname, handle);
  return handle;
}

void* Libraries::resolve(Entry& entry) {
  if (entry.looked.load(std::memory_order_acquire))
    return entry.function.load(std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  for (const char* const* need = entry.table->spec->needs; need && *need; ++need) open(*need);
  void* handle = open(entry.table->spec->soname);
  void* function = handle ? dlsym(handle, entry.spec->name) : nullptr;
  if (handle && !function)
    process::log_error(where(handle) + " has no " + entry.spec->name +
                       ": it is older than the client's");
  entry.function.store(function, std::memory_order_relaxed);
  entry.loaded.store(handle != nullptr, std::memory_order_relaxed);
  entry.looked.store(true, std::memory_order_release);
  return function;
}

void* Libraries::symbol(const char* library, const char* name) {
  std::lock_guard lock(mutex_);
  for (const LibraryTable& t : tables_) {
    if (std::string(t.spec->name) != library) continue;
    for (const char* const* need = t.spec->needs; need && *need; ++need) open(*need);
    void* handle = open(t.spec->soname);
    return handle ? dlsym(handle, name) : nullptr;
  }
  return nullptr;
}

}  // namespace sluice::worker
