// SPDX-License-Identifier: Apache-2.0
// Managed memory (docs/decisions/0011-managed-memory.md): memory that the program and its kernels
// reach at one address. On the node it is slabs of the vGPU's as any memory; here the same
// addresses, which lie in the vGPU's window, are mapped to host memory whose pages are moved when
// they are touched (managed/pages.h). The device has everything that a launch may see while its
// work is under way; the program's next touch waits for that, and fetches.
//
// Who calls: driver/managed.cc for the API; post() and exchange() before work is given to a device;
// copies before they use a range; the signal handler (managed/fault_signal.h) and the system calls
// (managed/system_calls.cc) when the program touches something. Promises: while there has been no
// managed memory in the process nothing of this costs more than a look at any(). No wait happens
// under its lock, so a host function that touches managed memory waits for nobody who waits for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "abi/cuda_driver.h"
#include "client/managed/advice.h"

namespace sluice::client {

class Session;
struct Device;
struct ManagedAllocation;
struct ManagedBlock;
struct ManagedExtent;
class ManagedMapping;
struct Stream;

class ManagedMemory {
 public:
  explicit ManagedMemory(Session& session);
  ~ManagedMemory();

  // Whether there has been any.
  bool any() const { return any_.load(std::memory_order_acquire); }

  struct Found {
    uint64_t start = 0, bytes = 0;
    Device* device = nullptr;
  };

  // ---- what there is
  CUresult allocate(Device* device, uint64_t bytes, unsigned flags, uint64_t* address);
  // The caller has waited for all that may use it. CUDA_ERROR_INVALID_VALUE: it is none.
  CUresult free(uint64_t address);
  // A __managed__ variable of a module, wherever the driver put it. Again with the same: nothing.
  CUresult add_variable(Device* device, uint64_t address, uint64_t bytes, uint64_t code);
  void drop_variables(uint64_t code);
  // Memory of a device that is mapped at these addresses of its window: the program sees it, too,
  // from here on, until it is disowned. Again with the same: nothing.
  CUresult adopt(Device* device, uint64_t address, uint64_t bytes);
  // The program sees nothing any more of what was adopted in the range; what it wrote is stored.
  // The caller has waited for all that may use it.
  CUresult disown(uint64_t address, uint64_t bytes);
  // All of a device that is reset.
  void clear(const Device* device);
  bool find(uint64_t address, Found* found);
  bool contains(uint64_t address) {
    Found found;
    return find(address, &found);
  }
  // Without a lock: false for most addresses of which it is not so.
  bool may_contain(uint64_t address) const {
    return address >= from_.load(std::memory_order_relaxed) &&
           address < to_.load(std::memory_order_relaxed);
  }

  // ---- the device's turn
  // By whoever gives work, from before it is counted until its command is in the channel: no wait
  // that ends meanwhile is taken for one that has covered it.
  class Giving {
   public:
    explicit Giving(ManagedMemory& memory) : memory_(memory.any() ? &memory : nullptr) {
      if (memory_) ++memory_->giving_;
    }
    ~Giving() {
      if (memory_) --memory_->giving_;
    }
    Giving(const Giving&) = delete;
    Giving& operator=(const Giving&) = delete;

   private:
    ManagedMemory* const memory_;
  };
  // `stream` is about to be given work that may touch any managed memory that it sees.
  CUresult before_work(const Stream& stream);
  // Work of `stream` that touches this range and nothing else; a range of other memory is passed
  // over.
  CUresult before_use(const Stream& stream, uint64_t address, uint64_t bytes);

  // ---- the program's turn
  // False: it is none of ours, or its bytes cannot be had.
  bool touch(uint64_t address, bool write);
  // The part of it that is managed becomes accessible.
  bool prepare(uint64_t address, uint64_t bytes, bool write);
  // Moves what was asked for in stream order, when all devices are known to be done.
  void after_wait();

  // ---- what the API says of it. The range lies in one allocation.
  CUresult attach(Stream* stream, uint64_t address, uint64_t bytes, unsigned flags);
  CUresult prefetch_to_host(uint64_t address, uint64_t bytes);
  CUresult advise(uint64_t address, uint64_t bytes, const std::function<void(Advice*)>& change);
  bool advice(uint64_t address, uint64_t bytes, const std::function<void(const Advice&)>& each);

  // This thread runs a host function: what is before it in its stream is done, and what comes after
  // it waits, so a touch waits for nothing.
  static bool& runs_host_function();

 private:
  using Allocations = std::map<uint64_t, std::unique_ptr<ManagedAllocation>>;  // by start

  // All of these under the lock.
  CUresult mover_of(Device* device, Stream** stream);
  CUresult place(Device* device, uint64_t bytes, ManagedBlock** block, uint64_t* address);
  void give_up(ManagedBlock* block);
  void add(Device* device, Stream* mover, std::unique_ptr<ManagedMapping> mapping,
           std::vector<ManagedExtent> extents);
  ManagedAllocation* at(uint64_t address);
  void remove(Allocations::iterator it);
  void note_range(uint64_t from, uint64_t to);
  void note_held(const ManagedAllocation& allocation);
  CUresult release(ManagedAllocation& allocation, uint64_t from, uint64_t to, Stream** moved);
  void note_other_work(ManagedAllocation* allocation, const Stream& stream);

  // Without it.
  // What a wait for all devices that begins now will have covered.
  uint64_t given() const;
  void note_waited(uint64_t upto);
  CUresult wait_for_devices();
  CUresult wait_for_stream(uint64_t id);
  bool wait_before_fetch(uint64_t address, uint64_t bytes, bool* mine);

  Session& session_;
  std::atomic<bool> any_{false};
  std::atomic<uint64_t> from_{~uint64_t{0}}, to_{0};  // around all that there has been
  std::mutex mutex_;
  Allocations allocations_;
  std::set<ManagedAllocation*> held_;  // of which the program has pages
  std::vector<std::unique_ptr<ManagedBlock>> blocks_;
  std::map<const Device*, Stream*> movers_;
  struct Prefetch {
    uint64_t address, bytes;
  };
  // Of the mutex. What is moved under it may wait for the mover's stream, and whoever has waited
  // asks after_wait().
  class Lock {
   public:
    explicit Lock(ManagedMemory& memory) : lock_(memory.mutex_) { held() = true; }
    ~Lock() { held() = false; }
    static bool& held();  // by this thread

   private:
    std::lock_guard<std::mutex> lock_;
  };
  std::vector<Prefetch> prefetches_;
  std::atomic<bool> prefetches_wait_{false};
  // Works that may touch managed memory, and how many of them a wait for all devices has covered.
  std::atomic<uint64_t> works_{0}, waited_{0};
  std::atomic<uint32_t> giving_{0};  // threads that have counted one, or will, and not sent it yet
};

}  // namespace sluice::client
