// SPDX-License-Identifier: Apache-2.0
#include "softgpu/interp/conditions.h"

#include <mutex>
#include <unordered_map>

namespace sluice::softgpu {
namespace {

struct Table {
  std::mutex mutex;
  std::unordered_map<uint64_t, Condition*> all;
  uint64_t next = 0xc0d1000000000001;
};

Table& table() {
  static auto* one = new Table;
  return *one;
}

}  // namespace

Condition::Condition(uint64_t handle_, uint32_t initial_, bool assign_)
    : handle(handle_), initial(initial_), assign(assign_), value(initial_) {
  std::lock_guard lock(table().mutex);
  table().all[handle] = this;
}

Condition::~Condition() {
  std::lock_guard lock(table().mutex);
  table().all.erase(handle);
}

std::shared_ptr<Condition> make_condition(uint32_t initial, bool assign) {
  uint64_t handle;
  {
    std::lock_guard lock(table().mutex);
    handle = table().next++;
  }
  return std::make_shared<Condition>(handle, initial, assign);
}

bool set_condition(uint64_t handle, uint32_t value) {
  std::lock_guard lock(table().mutex);
  auto found = table().all.find(handle);
  if (found == table().all.end()) return false;
  found->second->value.store(value);
  return true;
}

}  // namespace sluice::softgpu
