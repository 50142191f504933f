// SPDX-License-Identifier: Apache-2.0
// One call of a library's function on its way out. collect.cc makes a command of its arguments,
// settling.cc sees whether it has to be sent, call.cc sends it and takes the answer; what NCCL's
// groups collect is in group.h.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/core/enter.h"
#include "client/library/object.h"
#include "wire/library_spec.h"

namespace sluice::client::library {

constexpr size_t padded(size_t n) { return wire::round_up(n, 8); }

template <class T = void>
T* pointer(uint64_t word) {
  return reinterpret_cast<T*>(word);
}

// Memory that the device reaches by this address: device memory, or pinned memory of the arena.
bool names_memory(Session* s, uint64_t address);
// The session, opened, and the device of the thread's context, made if need be; or the status that
// the library gives instead.
int32_t enter_library(const wire::LibraryStatus& status, Session** session, Device** device);
// The worker could not call: the node lacks the library, or has an older one. Said once.
void say_lacking(CUresult e, const char* soname, const char* function);

// A call failed: what was asked and answered with "all is well" is asked again.
void forget_who_was_well();

// One call on its way out.
class Call {
 public:
  Call(const wire::LibrarySpec& library, const wire::FunctionSpec& function,
       const uint64_t* arguments)
      : library_(library), f_(function), args_(arguments), key_() {}
  ~Call();
  Call(const Call&) = delete;

  int64_t run();
  std::string text();

 private:
  // 0, or the status to return at once.
  int32_t enter() { return enter_library(library_.status, &session_, &device_); }
  int32_t collect();
  int32_t collect(int index);
  int32_t handle(int index);
  int32_t scalar(int index);
  int32_t carry(int index);
  int32_t attribute(int index);
  int32_t list(int index);
  void take_object(int index, Object* object);
  uint64_t id_at(int index) const;  // of a handle
  bool names(uint64_t address);     // device memory
  bool names_near_memory();
  void append(int index, const void* data, size_t n);
  void expect(int index, size_t n);
  void expect_back(int index, size_t n);
  bool fits(size_t n, bool out, bool back);
  uint64_t elements(const wire::ParamSpec& p) const;
  size_t scalar_bytes(const wire::ParamSpec& p);
  std::optional<int64_t> ask();
  int64_t run_now();
  // Into the group that the thread has open.
  int32_t join();
  int64_t scatter(std::span<const std::byte> answer);
  void note_whether_well();  // under the lock of State
  void remember();
  void take_back();
  uint64_t what_is_set() const;
  Key question() const;
  bool is_known() const;
  int32_t name(int index, Object* object, uint64_t id, uint64_t* on_node);
  std::optional<int32_t> settle();
  void settled(bool stands);
  Setting setting();  // takes the command: nothing is left to be sent
  std::unique_ptr<Recipe> recipe() const;

  const wire::LibrarySpec& library_;
  const wire::FunctionSpec& f_;
  const uint64_t* args_;
  Session* session_ = nullptr;
  Device* device_ = nullptr;
  Stream* work_ = nullptr;
  Object* main_ = nullptr;      // of the first handle
  Object* changed_[2] = {};     // of FunctionSpec::changes
  Object* computed_ = nullptr;  // of FunctionSpec::computes
  uint64_t main_id_ = 0, minted_id_ = 0;
  Object* minted_ = nullptr;
  std::vector<uint64_t> named_;            // addresses, where there are several nodes
  std::vector<KeptObjects::Entry*> pins_;  // what the command names stays until it is sent
  bool waits_ = false;                     // it sets what the object can be told later
  bool sent_ = false;
  std::unique_ptr<Recipe> recipe_;             // of what it creates
  std::unique_ptr<KeptObjects::Entry> asked_;  // that a recipe or a setting is tried on
  bool learnable_ = true;
  Key key_;      // all that decides whether the call is valid
  Key setting_;  // the same without the first handle
  std::vector<std::byte> body_;
  struct Expected {
    int index;
    size_t bytes;
  };
  std::vector<Expected> expected_;
  size_t reply_bytes_ = 8;  // the status, and what is expected behind it
  std::vector<std::byte> reply_;
};

}  // namespace sluice::client::library
