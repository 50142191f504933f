// SPDX-License-Identifier: Apache-2.0
// One call of a library's function, as a command asks for it: each word is checked against the
// session and the function's spec before the library sees it.
#pragma once

#include <optional>

#include "worker/dispatch.h"
#include "worker/library/library.h"

namespace sluice::worker {

class LibraryCall {
 public:
  LibraryCall(Session& session, const Command& command, Libraries::Entry& entry)
      : session_(session), command_(command), entry_(entry), f_(*entry.spec) {}

  void run(Reply& reply);
  // The steps of it, for commands that hold several calls. Everything is checked by prepare():
  // false, with the session rejected or *lacking saying what the node lacks.
  bool prepare(CUresult* lacking);
  int64_t issue();
  void finish(int64_t status);
  // The object that the call ends, and whether it names one; 0: none.
  uint64_t ends() const { return f_.state == wire::CallState::kDestroys ? main_id_ : 0; }
  // Calls `visit` with each object that it names.
  template <class F>
  void for_each_object(F&& visit) const {
    for (int i = 0; i < f_.params; ++i)
      if (f_.param[i].kind == wire::ParamKind::kHandle) visit(sent_[i]);
  }

 private:
  static constexpr size_t kScalarRoom = 32;  // cudnnSetTensor of INT8x32 reads so much

  void narrow_values();
  bool read(int index);
  bool read_object(int index, const wire::ParamSpec& p);
  bool read_list(int index, const wire::ParamSpec& p, uint64_t n);
  bool read_carried(int index, const wire::ParamSpec& p);
  bool reject(int index, const char* why);
  std::span<const std::byte> piece(uint64_t n);
  std::byte* room(size_t n);
  void answer(int64_t status, Reply& reply);
  void keep(int64_t status);
  void keep_holds();
  void keep_buffers();
  bool may_end(int64_t* status);
  void name_objects();
  void hold(const LibraryObject& object);
  // proofs.cc: what must hold of the arguments beyond their shape. What an honest program may get
  // wrong is the library's status in refusal_; what it cannot ends the session.
  int32_t pointer_mode(const wire::ParamSpec& p) const;
  bool in_host_memory(const wire::ParamSpec& p) const;
  bool is_attribute(int index, std::span<const std::byte> value);
  void check_bounds(int index);
  void check_opaque(int index);
  void check_sizes();
  void remember_opaque();
  int64_t size_at(int which) const;
  // collective.cc: calls that other ranks have a part in are counted (worker/collectives.h), as
  // they are given to the library, and taken back where it refuses them.
  Collectives::One counted_as() const;
  void count(bool captured);
  void settle_count(int64_t status);
  // How long it takes depends on the function and on the numbers that it is given.
  uint64_t kind() const;
  bool workspace_is_enough(int64_t* status);
  bool check_indices(const wire::IndexArrays& a, int64_t* status);
  void refuse(int64_t status) {
    if (!refusal_) refusal_ = status;
  }

  Session& session_;
  const Command& command_;
  Libraries::Entry& entry_;
  const wire::FunctionSpec& f_;
  uint64_t sent_[wire::kMaxLibraryParams];   // as they came, numbers as wide as they are
  uint64_t words_[wire::kMaxLibraryParams];  // as the function takes them
  std::span<const std::byte> rest_;
  uint64_t main_id_ = 0, minted_id_ = 0;
  LibraryObject main_;
  uint64_t minted_ = 0;  // what the library puts there
  uint8_t minted_type_ = 0;
  CUstream stream_ = CU_STREAM_LEGACY;  // where the work goes
  bool has_stream_ = false;
  Vgpu* vgpu_ = nullptr;
  Collectives::One counted_;
  Gate::Passage passage_;  // from the call's beginning until it is issued
  void* function_ = nullptr;
  // Nothing that the function gets may move while it runs.
  Buffers rooms_;
  // Nor may the objects that it gets be destroyed.
  std::array<std::shared_ptr<ObjectLife>, 8> held_;
  std::vector<std::shared_ptr<ObjectLife>> held_too_;
  size_t held_count_ = 0;
  std::optional<int64_t> refusal_;  // the status instead of the call
  // Copies of index arrays, on the device for as long as the call lasts.
  struct Copied {
    CUdeviceptr at;
    uint64_t bytes;
  };
  std::vector<Copied> copied_;
  CUdeviceptr copy_to_device(std::span<const std::byte> bytes);
  void free_copies();
  alignas(16) std::byte scalars_[wire::kMaxLibraryParams][kScalarRoom];
  struct Output {
    const std::byte* at;
    size_t bytes;
  };
  std::vector<Output> outputs_;
  size_t output_bytes_ = 8;
  struct Named {
    std::byte* at;
    uint8_t type;
  };
  std::vector<Named> named_;  // outputs that are pointers to objects
};

}  // namespace sluice::worker
