// SPDX-License-Identifier: Apache-2.0
// The CUDA libraries that this worker executes on, loaded by SONAME when the first of their
// functions is called, and the objects that the session made in them. What may be called is in the
// tables of native/api/libraries; one marshaller (call.cc) serves them all.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_set>
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

class GotDescriptors;

// What all copies of a LibraryObject share: who else has one is in a call with the object. One that
// others hold outlives its destruction by the program: `end` is called when the last lets go.
struct ObjectLife {
  ObjectLife() = default;
  ObjectLife(const ObjectLife&) = delete;
  ~ObjectLife() {
    if (end) end();
  }
  std::atomic<long> holders{0};
  std::function<void()> end;
  // Of cuDNN's backend descriptors: what a look got of it (cudnn_got.h).
  std::mutex got_mutex;
  std::shared_ptr<GotDescriptors> got;
};

// The library keeps a pointer to that object in another one.
class ObjectHold {
 public:
  explicit ObjectHold(std::shared_ptr<ObjectLife> life) : life_(std::move(life)) {
    ++life_->holders;
  }
  ObjectHold(const ObjectHold&) = delete;
  ~ObjectHold() { --life_->holders; }

 private:
  const std::shared_ptr<ObjectLife> life_;
};

// What a call was given in the worker's memory.
using Buffers = std::vector<std::unique_ptr<std::byte[]>>;

struct LibraryObject {
  uint8_t type = 0;
  void* pointer = nullptr;             // or a number, cast
  CUstream stream = CU_STREAM_LEGACY;  // that its work goes to
  bool host_memory = false;            // FunctionSpec::host_memory of what made it
  int32_t pointer_mode = 0;            // that the library's object really has; 0: host memory
  // Of what an analysis found, once there was one: rows, columns, number of indices.
  std::array<int64_t, 3> sizes{-1, -1, -1};
  // Of cuDNN's backend descriptors: the tensors passed by value that they lead to.
  std::shared_ptr<const struct ByValue> by_value{};
  // Of one that cuDNN refused after its caller had gone on: its status; there is no pointer then.
  int64_t refused = 0;
  std::shared_ptr<ObjectLife> life{};
  std::shared_ptr<const std::vector<std::unique_ptr<ObjectHold>>> holds{};
  // What the object may point to, by the function that set it and what it set.
  std::shared_ptr<const std::map<uint64_t, std::shared_ptr<const Buffers>>> retained{};
};

// Objects by the client's ids.
class LibraryObjects : public ObjectTable<LibraryObject> {
 public:
  using ObjectTable::ObjectTable;
  bool add(uint64_t id, LibraryObject object) {
    object.life = std::make_shared<ObjectLife>();
    return ObjectTable::add(id, std::move(object));
  }
};

// What libraries gave the session as bytes that only they understand (algorithms of cuBLASLt) and
// follow without looking when they get them back. The oldest are forgotten.
class OpaqueBytes {
 public:
  static constexpr size_t kMost = 1 << 16;
  void add(std::span<const std::byte> bytes);
  bool has(std::span<const std::byte> bytes) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_set<std::string> all_;
  std::deque<const std::string*> order_;
};

// The tensors of a descriptor that are passed by value, by their unique ids (cudnn_backend.cc).
std::shared_ptr<const ByValue> by_value(const std::vector<int64_t>& tensors);

class Libraries {
 public:
  // Folders to look in before the loader's own, in order. Before the first session.
  static void set_path(const std::vector<std::string>& folders);
  static Libraries& get();
  // Which CUDA version the client speaks, 12090 = 12.9; before the first call. NVIDIA's libraries
  // of that version are taken where they are on the node, else the newest's, which serve it by ABI:
  // the log says which.
  void set_client_version(uint32_t version);

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

  // A library that is in no table, by its SONAME; nullptr where there is none.
  void* open(const std::string& soname);

  // A library's entry by name, for handlers written by hand.
  void* symbol(const char* library, const char* name);

  LibraryObjects objects{wire::HandleKind::kLibraryObject};
  OpaqueBytes given;

 private:
  Libraries();
  void* load(const wire::LibrarySpec& spec);
  void* load_as(const wire::LibrarySpec& spec, bool older, std::string* tried);
  void* look_for(const std::string& soname, std::string* tried);

  std::vector<LibraryTable> tables_;
  std::unique_ptr<Entry[]> entries_;  // by id - kFirstLibraryFunction
  size_t count_ = 0;
  std::mutex mutex_;
  std::vector<std::pair<std::string, void*>>
      open_;  // under the newest's SONAME; nullptr: there is none
  std::vector<std::pair<std::string, void*>> found_;  // under any
  std::atomic<uint32_t> client_major_{0};
};

}  // namespace sluice::worker
