// SPDX-License-Identifier: Apache-2.0
// A driver for the worker that executes nothing: it writes down every call with its arguments,
// keeps a sparse memory so that copies can be looked at, and holds every handle and address against
// what it has given out. Owned by the process (one at a time); tests reach it by Recording::get()
// and may put their own answer in front of a function with SLUICE_ON(cuName) = [](...) {...}.
#pragma once

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "worker/driver.h"

namespace sluice::test {

struct Call {
  const char* name;
  std::vector<std::vector<std::byte>> arguments;
  template <class T>
  T at(size_t i) const {
    T value{};
    if (arguments.at(i).size() == sizeof(T)) std::memcpy(&value, arguments[i].data(), sizeof(T));
    return value;
  }
};

// Device memory as far as somebody wrote to it; the rest reads as zero.
class SparseMemory {
 public:
  void write(uint64_t address, const void* data, size_t n);
  std::vector<std::byte> read(uint64_t address, size_t n) const;
  void clear() { pages_.clear(); }

 private:
  static constexpr uint64_t kPage = 4096;
  std::map<uint64_t, std::vector<std::byte>> pages_;
};

class Recording {
 public:
  static Recording& get();
  static constexpr CUgraphConditionalHandle kCondition = 0xc0d1000000000007;  // the only one made

  // Forgets everything but pinned memory, and fills the driver's table.
  void reset(worker::Driver* driver);

  // The calls since clear(), without cuCtxSetCurrent, which changes nothing but the thread.
  std::vector<Call> calls;
  std::vector<const Call*> calls_of(const char* name) const;
  const Call& only(const char* name) const;
  void clear() { calls.clear(); }

  bool writing_down = true;
  CUresult status = CUDA_SUCCESS;  // of the functions that nothing else is said about
  // Arguments that nobody gave the worker, as lines. Must stay empty.
  std::vector<std::string> violations;
  SparseMemory memory;

  struct Ranges {
    std::map<uint64_t, uint64_t> all;
    void add(const void* at, uint64_t bytes) { all[reinterpret_cast<uint64_t>(at)] = bytes; }
    void add(uint64_t at, uint64_t bytes) { all[at] = bytes; }
    bool holds(uint64_t address, uint64_t bytes) const;
  };
  Ranges windows, globals, host, marks;
  Ranges taken;   // device memory that the worker took for itself
  Ranges pinned;  // what the worker allocated; its threads keep some from one session to the next
  std::span<const std::byte> frame;  // the body of the command under way

  std::set<const void*> streams, events, modules, libraries, functions, contexts;
  std::set<const void*> own_kernels;  // the worker's, of links to other nodes
  std::set<const void*> graphs, graph_execs;
  struct Node {
    const void* graph = nullptr;
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    CUDA_KERNEL_NODE_PARAMS kernel{};
    CUDA_MEMCPY3D copy{};
    CUDA_MEMSET_NODE_PARAMS fill{};
    CUgraph child = nullptr;  // its copy of what it was given
  };
  std::map<const void*, Node> graph_nodes;
  std::map<CUstream, CUgraph> captured;  // of the captures under way
  std::set<uint64_t> allocations;
  // What lies in arrays and in the levels of mipmapped ones.
  struct StoredArray {
    CUDA_ARRAY3D_DESCRIPTOR descriptor{};
    uint32_t levels = 0;  // of a mipmapped array
    uint64_t row_bytes = 0, rows = 0, slices = 0;
    std::vector<std::byte> bytes;
    std::vector<CUarray> level_arrays;
    std::byte* at(uint64_t x, uint64_t y, uint64_t z) {
      return bytes.data() + (z * rows + y) * row_bytes + x;
    }
  };
  std::map<const void*, StoredArray> arrays;
  std::set<uint64_t> textures, surfaces;
  struct Symbol {
    CUdeviceptr address = 0x7fab00000000;
    size_t bytes = 4096;
  } symbol;  // of every module; a library's lies kLibrarySymbols further
  static constexpr uint64_t kLibrarySymbols = 1 << 30;
  std::map<const void*, std::set<uint64_t>> globals_of;                    // by module or library
  std::vector<std::pair<size_t, size_t>> params{{0, 8}, {8, 8}, {16, 4}};  // of every function

  template <class T>
  T mint(std::set<const void*>& live) {
    next_ += 64;
    live.insert(reinterpret_cast<void*>(next_));
    return reinterpret_cast<T>(next_);
  }
  bool device_range(uint64_t address, uint64_t bytes) const;
  bool host_range(const void* at, uint64_t bytes) const;
  void violation(const char* function, const std::string& what);

  void note(const char* name, std::vector<std::vector<std::byte>> arguments);
  void check(const char* function, CUstream stream);
  void check(const char* function, CUevent event);
  void check(const char* function, CUmodule module);
  void check(const char* function, CUlibrary library);
  void check(const char* function, CUfunction f);
  void check(const char* function, CUkernel kernel);
  void check(const char* function, CUcontext context);
  void check(const char* function, CUgraph graph);
  void check(const char* function, CUgraphNode node);
  void check(const char* function, CUgraphExec exec);
  void check(const char* function, CUdeviceptr address);
  template <class T>
  void check(const char*, const T&) {}

 private:
  void install_objects();
  void install_memory();
  void install_copies();
  void install_graphs();
  CUgraphNode mint_node(CUgraph graph, CUgraphNodeType type);
  void check_node(const CUgraphNodeParams& params);
  void install_arrays();
  void install_green();
  uint64_t next_ = 0x7e5700000000;
};

template <size_t N>
struct FunctionName {
  char text[N];
  constexpr FunctionName(const char (&t)[N]) {  // NOLINT: a literal stands for its name
    for (size_t i = 0; i < N; ++i) text[i] = t[i];
  }
};

template <class T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto* at = reinterpret_cast<const std::byte*>(&value);
  return {at, at + sizeof value};
}

template <FunctionName kName, class F>
struct Recorded;
template <FunctionName kName, class... A>
struct Recorded<kName, CUresult (*)(A...)> {
  static inline std::function<CUresult(A...)> answer;
  static constexpr FunctionName kText = kName;
  static CUresult call(A... a) {
    Recording& r = Recording::get();
    if (r.writing_down) r.note(kText.text, {bytes_of(a)...});
    (r.check(kText.text, a), ...);
    return answer ? answer(a...) : r.status;
  }
};

// Names are needed both as text and as types, which only a macro has.
#define SLUICE_ON(name) ::sluice::test::Recorded<#name, decltype(&::name)>::answer

}  // namespace sluice::test
