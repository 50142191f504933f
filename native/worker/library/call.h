// SPDX-License-Identifier: Apache-2.0
// One call of a library's function, as a command asks for it: each word is checked against the
// session and the function's spec before the library sees it.
#pragma once

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

 private:
  static constexpr size_t kScalarRoom = 16;

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
  void name_objects();

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
  void* function_ = nullptr;
  // Nothing that the function gets may move while it runs.
  std::vector<std::unique_ptr<std::byte[]>> rooms_;
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
