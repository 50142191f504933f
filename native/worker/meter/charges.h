// SPDX-License-Identifier: Apache-2.0
// What was charged for which object: the owner of every charge that libraries hold. An object has
// one entry from the call that made it to the call that ends it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "worker/meter/meter.h"

namespace sluice::meter {

using worker::Metered;
using worker::MeterHost;

// Kinds of objects, whose names may coincide.
enum class Space : uint32_t {
  kPointer,
  kHost,
  kRegistered,
  kArray,
  kMipmapped,
  kModule,
  kLibrary,
  kStream
};

// One charge; given back with its last owner, unless it was refused.
class Charge {
 public:
  Charge(const MeterHost& host, Metered kind, int device, uint64_t bytes)
      : host_(&host), kind_(kind), bytes_(bytes) {
    granted_ = host.take(kind, device, bytes, &account_);
  }
  ~Charge() {
    if (host_ && granted_) host_->give(kind_, account_, bytes_);
  }
  Charge(Charge&& other) noexcept { *this = static_cast<Charge&&>(other); }
  Charge& operator=(Charge&& other) noexcept {
    std::swap(host_, other.host_);
    std::swap(kind_, other.kind_);
    std::swap(account_, other.account_);
    std::swap(bytes_, other.bytes_);
    std::swap(granted_, other.granted_);
    return *this;
  }
  bool granted() const { return granted_; }

 private:
  const MeterHost* host_ = nullptr;
  Metered kind_ = Metered::kDevice;
  uint32_t account_ = 0;
  uint64_t bytes_ = 0;
  bool granted_ = false;
};

// Every charge by the name of its object.
class Charges {
 public:
  void add(Space space, uint64_t name, Charge charge) {
    std::lock_guard lock(mutex_);
    charges_.insert_or_assign({space, name}, std::move(charge));
  }
  // Taken out before the driver is told of the end, as the name may be another's at once
  // afterwards.
  std::optional<Charge> take(Space space, uint64_t name) {
    std::lock_guard lock(mutex_);
    const auto it = charges_.find({space, name});
    if (it == charges_.end()) return std::nullopt;
    std::optional<Charge> charge(std::move(it->second));
    charges_.erase(it);
    return charge;
  }

  // The virtual memory API: memory lives while a handle or a mapping names it.
  void add_allocation(uint64_t handle, Charge charge) {
    std::lock_guard lock(mutex_);
    allocations_.insert_or_assign(handle,
                                  Allocation{std::make_shared<Charge>(std::move(charge)), 1});
  }
  void retain(uint64_t handle, uint64_t address) {
    std::lock_guard lock(mutex_);
    if (const auto it = allocations_.find(handle); it != allocations_.end()) {
      ++it->second.handles;
    } else if (const auto m = mapping_at(address); m != mappings_.end()) {
      allocations_.insert_or_assign(handle, Allocation{m->second.charge, 1});
    }
  }
  // What release() or unmap() took out is the caller's: let go of it without the mutex, and once
  // the driver has.
  using Kept = std::shared_ptr<Charge>;
  Kept release(uint64_t handle) {
    std::lock_guard lock(mutex_);
    const auto it = allocations_.find(handle);
    if (it == allocations_.end() || --it->second.handles > 0) return nullptr;
    Kept kept = std::move(it->second.charge);
    allocations_.erase(it);
    return kept;
  }
  void map(uint64_t address, uint64_t bytes, uint64_t handle) {
    std::lock_guard lock(mutex_);
    if (const auto it = allocations_.find(handle); it != allocations_.end())
      mappings_.insert_or_assign(address, Mapping{bytes, it->second.charge});
  }
  std::map<uint64_t, Kept> unmap(uint64_t address, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    std::map<uint64_t, Kept> kept;
    for (auto it = mappings_.lower_bound(address);
         it != mappings_.end() && it->first - address < bytes;) {
      kept.emplace(it->first, std::move(it->second.charge));
      it = mappings_.erase(it);
    }
    return kept;
  }

 private:
  struct Allocation {
    Kept charge;
    uint32_t handles;
  };
  struct Mapping {
    uint64_t bytes;
    Kept charge;
  };
  std::map<uint64_t, Mapping>::iterator mapping_at(uint64_t address) {
    auto it = mappings_.upper_bound(address);
    if (it == mappings_.begin()) return mappings_.end();
    --it;
    return address - it->first < it->second.bytes ? it : mappings_.end();
  }

  std::mutex mutex_;
  std::map<std::pair<Space, uint64_t>, Charge> charges_;
  std::map<uint64_t, Allocation> allocations_;  // by the driver's handle
  std::map<uint64_t, Mapping> mappings_;        // by address
};

}  // namespace sluice::meter
