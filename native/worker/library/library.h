// SPDX-License-Identifier: Apache-2.0
// The CUDA libraries that this worker executes on, loaded by SONAME when the first of their
// functions is called, and the objects that the session made in them. What may be called is in the
// tables of native/api/libraries; one marshaller (call.cc) serves them all.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi/cuda_driver.h"
#include "wire/library_spec.h"
#include "worker/objects.h"

namespace sluice::worker {

// Calls a function with words for arguments; pointers are addresses in this process.
using Thunk = int64_t (*)(void* function, const uint64_t* words);

struct LibraryTable {
  const wire::LibrarySpec* spec;
  const Thunk* thunks;  // one for each function of the spec
};
// Every library that was built in; generated.
std::vector<LibraryTable> library_tables();

struct LibraryObject {
  uint8_t type = 0;
  void* pointer = nullptr;             // or a number, cast
  CUstream stream = CU_STREAM_LEGACY;  // that its work goes to
  bool host_memory = false;            // FunctionSpec::host_memory of what made it
};

class Libraries {
 public:
  // Folders to look in before the loader's own, in order. Before the first session.
  static void set_path(const std::vector<std::string>& folders);
  static Libraries& get();

  // The function that an id names: its spec, thunk and address. A library that cannot be loaded is
  // logged once; `function` is nullptr then, and when the library, although loaded, lacks it.
  struct Entry {
    const LibraryTable* table = nullptr;
    const wire::FunctionSpec* spec = nullptr;
    Thunk thunk = nullptr;
    std::atomic<void*> function{nullptr};
    std::atomic<bool> loaded{false};
    std::atomic<bool> looked{false};
  };
  Entry* find(uint16_t id);
  void* resolve(Entry& entry);

  // A library's entry by name, for handlers written by hand.
  void* symbol(const char* library, const char* name);

  ObjectTable<LibraryObject> objects{32, 1 << 20};

 private:
  Libraries();
  void* open(const std::string& soname);

  std::vector<LibraryTable> tables_;
  std::unique_ptr<Entry[]> entries_;  // by id - kFirstLibraryFunction
  size_t count_ = 0;
  std::mutex mutex_;
  std::vector<std::pair<std::string, void*>> open_;
};

}  // namespace sluice::worker
