// SPDX-License-Identifier: Apache-2.0
// What of cuBLASLt no table says: descriptors in the program's own memory, which the header's
// inline functions (cublasLtMatmulDescInit and the like) make. Such memory holds a stamp with the
// id of an object that was made in the ordinary way; the handle is its address. A program never
// ends these objects: it makes another at the same place, or leaves the place. So what was made
// there before rests for a while, as a copy of the memory may still name it, and is ended then.
#include <sys/uio.h>
#include <unistd.h>

#include <deque>
#include <mutex>
#include <unordered_map>

#include "client/libraries/logger.h"
#include "client/library/call.h"

extern "C" {
int32_t cublasLtMatmulDescCreate(void*, int32_t, int32_t);
int32_t cublasLtMatmulDescDestroy(void*);
int32_t cublasLtMatrixLayoutCreate(void*, int32_t, uint64_t, uint64_t, int64_t);
int32_t cublasLtMatrixLayoutDestroy(void*);
int32_t cublasLtMatrixTransformDescCreate(void*, int32_t);
int32_t cublasLtMatrixTransformDescDestroy(void*);
int32_t cublasLtMatmulPreferenceCreate(void*);
int32_t cublasLtMatmulPreferenceDestroy(void*);
int32_t cublasLtEmulationDescCreate(void*);
int32_t cublasLtEmulationDescDestroy(void*);
}

namespace {

constexpr int32_t kInvalidValue = 7;
constexpr uint64_t kStamp = 0x6c73756c6963656full;
constexpr size_t kMostResting = 1024;

struct Stamp {
  uint64_t stamp, id;
};
using Destroy = int32_t (*)(void*);

struct Places {
  std::mutex mutex;
  struct Made {
    uint64_t id;
    Destroy destroy;
  };
  std::unordered_map<uint64_t, Made> by_address;
  std::unordered_map<uint64_t, Destroy> by_id;
  std::deque<uint64_t> resting;
};
Places& places() {
  static Places* p = new Places;
  return *p;
}

void* as_handle(uint64_t id) { return reinterpret_cast<void*>(id); }

// The program's memory, which may be anything.
bool read_stamp(uint64_t address, Stamp* stamp) {
  iovec own{stamp, sizeof *stamp}, other{reinterpret_cast<void*>(address), sizeof *stamp};
  return process_vm_readv(getpid(), &own, 1, &other, 1, 0) == sizeof *stamp &&
         stamp->stamp == kStamp;
}

void settle_at(Places& p, uint64_t address, uint64_t id, Destroy destroy) {
  p.by_address[address] = {id, destroy};
  p.by_id[id] = destroy;
  const Stamp stamp{kStamp, id};
  std::memcpy(reinterpret_cast<void*>(address), &stamp, sizeof stamp);
}

// What lies at an address now is something else. Returns what is to be ended, if anything is.
void leave(Places& p, uint64_t address, std::deque<Places::Made>* ended) {
  const auto it = p.by_address.find(address);
  if (it == p.by_address.end()) return;
  p.resting.push_back(it->second.id);
  p.by_address.erase(it);
  while (p.resting.size() > kMostResting) {
    const uint64_t id = p.resting.front();
    p.resting.pop_front();
    const auto known = p.by_id.find(id);
    if (known == p.by_id.end()) continue;
    ended->push_back({id, known->second});
    p.by_id.erase(known);
  }
}

template <class Create>
int32_t make_at(void* memory, size_t size, Destroy destroy, Create&& create) {
  if (!memory || size < sizeof(Stamp)) return kInvalidValue;
  uint64_t id = 0;
  if (const int32_t status = create(&id); status != 0) return status;
  std::deque<Places::Made> ended;
  {
    Places& p = places();
    std::lock_guard lock(p.mutex);
    leave(p, reinterpret_cast<uint64_t>(memory), &ended);
    std::memset(memory, 0, size);
    settle_at(p, reinterpret_cast<uint64_t>(memory), id, destroy);
  }
  for (const Places::Made& m : ended) m.destroy(as_handle(m.id));
  return 0;
}

}  // namespace

namespace sluice::client::library::cublaslt {

uint64_t id_of(void* handle) {
  const auto word = reinterpret_cast<uint64_t>(handle);
  if (word == 0 || word >> 48 != 0) return word;  // an id is no address of a program's
  Places& p = places();
  std::lock_guard lock(p.mutex);
  Stamp stamp;
  const auto it = p.by_address.find(word);
  if (it != p.by_address.end()) {
    std::memcpy(&stamp, handle, sizeof stamp);
    if (stamp.stamp == kStamp && stamp.id == it->second.id) return stamp.id;
  }
  if (!read_stamp(word, &stamp)) return word;
  // The memory was copied from where it was made: a descriptor of its own from now on.
  const auto known = p.by_id.find(stamp.id);
  if (known == p.by_id.end()) return word;
  const Destroy destroy = known->second;
  uint64_t copy = 0;
  if (!sluice_library_clone(stamp.id, &copy)) return stamp.id;
  settle_at(p, word, copy, destroy);
  return copy;
}

}  // namespace sluice::client::library::cublaslt

SLUICE_PUBLIC int32_t cublasLtMatmulDescInit_internal(void* memory, size_t size, int32_t compute,
                                                      int32_t scale) {
  return make_at(memory, size, cublasLtMatmulDescDestroy,
                 [&](uint64_t* id) { return cublasLtMatmulDescCreate(id, compute, scale); });
}
SLUICE_PUBLIC int32_t cublasLtMatrixLayoutInit_internal(void* memory, size_t size, int32_t type,
                                                        uint64_t rows, uint64_t columns,
                                                        int64_t ld) {
  return make_at(memory, size, cublasLtMatrixLayoutDestroy, [&](uint64_t* id) {
    return cublasLtMatrixLayoutCreate(id, type, rows, columns, ld);
  });
}
SLUICE_PUBLIC int32_t cublasLtMatrixTransformDescInit_internal(void* memory, size_t size,
                                                               int32_t scale) {
  return make_at(memory, size, cublasLtMatrixTransformDescDestroy,
                 [&](uint64_t* id) { return cublasLtMatrixTransformDescCreate(id, scale); });
}
SLUICE_PUBLIC int32_t cublasLtMatmulPreferenceInit_internal(void* memory, size_t size) {
  return make_at(memory, size, cublasLtMatmulPreferenceDestroy,
                 [](uint64_t* id) { return cublasLtMatmulPreferenceCreate(id); });
}
SLUICE_PUBLIC int32_t cublasLtEmulationDescInit_internal(void* memory, size_t size) {
  return make_at(memory, size, cublasLtEmulationDescDestroy,
                 [](uint64_t* id) { return cublasLtEmulationDescCreate(id); });
}

SLUICE_LOGGER(cublasLt, "cuBLASLt")
