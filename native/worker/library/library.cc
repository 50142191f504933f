// SPDX-License-Identifier: Apache-2.0
#include "worker/library/library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include "process/log.h"
#include "wire/frame.h"
#include "wire/older_sonames.h"

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

bool is_older(uint32_t major) {
  for (const wire::OlderSoname& one : wire::kOlderSonames)
    if (one.major == major) return true;
  return false;
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

void* Libraries::open(const std::string& soname) {
  std::lock_guard lock(mutex_);
  std::string tried;
  return look_for(soname, &tried);
}

void Libraries::set_client_version(uint32_t version) { client_major_ = version / 1000; }

// Under the mutex.
void* Libraries::look_for(const std::string& soname, std::string* tried) {
  for (const auto& [name, handle] : found_)
    if (name == soname) return handle;
  void* handle = nullptr;
  for (const std::string& folder : search_path()) {
    const std::string path = folder + "/" + soname;
    if (access(path.c_str(), F_OK) != 0) continue;
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle) break;
    *tried += std::string("; ") + dlerror();
  }
  if (!handle) {
    handle = dlopen(soname.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!handle) *tried += std::string("; ") + dlerror();
  }
  if (handle) found_.emplace_back(soname, handle);
  return handle;
}

// Under the mutex. A library, and before it what it needs, by the names of the client's CUDA
// version or by those of the newest.
void* Libraries::load_as(const wire::LibrarySpec& spec, bool older, std::string* tried) {
  const uint32_t major = client_major_.load();
  std::string unneeded;
  for (const char* const* need = spec.needs; need && *need; ++need)
    look_for(older ? wire::older_soname(*need, major) : *need, &unneeded);
  return look_for(older ? wire::older_soname(spec.soname, major) : spec.soname, tried);
}

// Under the mutex. Keeps what it found, nullptr too.
void* Libraries::load(const wire::LibrarySpec& spec) {
  const std::string soname = spec.soname;
  for (const auto& [name, handle] : open_)
    if (name == soname) return handle;
  const uint32_t major = client_major_.load();
  const bool has_older = is_older(major);
  std::string tried;
  void* handle = has_older ? load_as(spec, true, &tried) : nullptr;
  const bool newest_serves = has_older && !handle;
  if (!handle) handle = load_as(spec, false, &tried);
  const std::string wanted = has_older ? wire::older_soname(soname, major) : soname;
  if (handle && newest_serves)
    process::log_info("took " + where(handle) + " for a client of CUDA " + std::to_string(major) +
                      ": there is no " + wanted + " on this node");
  else if (handle)
    process::log_info("took " + where(handle) + " for " + wanted);
  else
    process::log_error("there is no " + (wanted != soname ? wanted + " and no " : "") + soname +
                       " on this node" + tried +
                       ". Install it, or name its folder in server.conf ([server] cuda_libraries)");
  open_.emplace_back(soname, handle);
  return handle;
}

void* Libraries::resolve(Entry& entry) {
  if (entry.looked.load(std::memory_order_acquire))
    return entry.function.load(std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  void* handle = load(*entry.table->spec);
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
    void* handle = load(*t.spec);
    return handle ? dlsym(handle, name) : nullptr;
  }
  return nullptr;
}

}  // namespace sluice::worker
