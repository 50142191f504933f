// SPDX-License-Identifier: Apache-2.0
// What must hold of a library call's arguments beyond their shape, before the library sees them:
// where scalars lie, what attributes are, that algorithms are the library's own, that workspaces
// are as large as the library says, and that index arrays lead nowhere else. The library takes all
// of this on trust, so here it is proved (wire::Proof, docs/api-registry.md). Part of LibraryCall.
#include <algorithm>
#include <cstring>
#include <new>

#include "process/log.h"
#include "wire/library_sizes.h"
#include "worker/library/call.h"
#include "worker/library/charge.h"

namespace sluice::worker {

namespace {

using wire::IndexArrays;
using wire::ParamKind;
using wire::ParamSpec;

// That are read at once: 256 MiB.
constexpr uint64_t kMostIndices = 1ull << 26;

int64_t number(const ParamSpec& p, uint64_t word) {
  return p.bytes == 4 ? static_cast<int32_t>(word) : static_cast<int64_t>(word);
}

// From where a matrix counts: cusparseGetMatIndexBase, of the library that made the descriptor.
int32_t index_base(void* descriptor) {
  using Base = int32_t (*)(const void*);
  static const auto base =
      reinterpret_cast<Base>(Libraries::get().symbol("cusparse", "cusparseGetMatIndexBase"));
  return base && descriptor ? base(descriptor) : 0;
}

// Each row's offsets follow those of the row before it, and its columns are there, each once.
// `seen` has an element for each column: the row that it was last seen in, none yet.
bool is_matrix(const std::vector<int32_t>& offsets, const std::vector<int32_t>& columns,
               int64_t base, std::vector<int32_t> seen) {
  const auto width = static_cast<int64_t>(seen.size());
  if (base < 0 || base > 1 || offsets.front() != base) return false;
  if (int64_t{offsets.back()} - base != static_cast<int64_t>(columns.size())) return false;
  for (size_t i = 1; i < offsets.size(); ++i)
    if (offsets[i] < offsets[i - 1]) return false;
  // Since they rise from the base to the end, every one of them lies between.
  for (size_t row = 0; row + 1 < offsets.size(); ++row) {
    for (int64_t k = offsets[row] - base; k < offsets[row + 1] - base; ++k) {
      const int64_t column = columns[static_cast<size_t>(k)] - base;
      if (column < 0 || column >= width) return false;
      int32_t& last = seen[static_cast<size_t>(column)];
      if (last == static_cast<int32_t>(row)) return false;
      last = static_cast<int32_t>(row);
    }
  }
  return true;
}

bool is_permutation(const std::vector<int32_t>& numbers) {
  std::vector<bool> seen(numbers.size());
  for (const int32_t n : numbers) {
    if (n < 0 || static_cast<size_t>(n) >= numbers.size() || seen[static_cast<size_t>(n)])
      return false;
    seen[static_cast<size_t>(n)] = true;
  }
  return true;
}

}  // namespace

// Of the object on the node that says where a parameter lies; 0: in host memory.
int32_t LibraryCall::pointer_mode(const ParamSpec& p) const {
  if (p.size == wire::ScalarSize::kNcclType) return static_cast<int32_t>(sent_[p.by2]) == 0;
  if (!entry_.table->spec->pointer_modes) return 0;
  if (p.size != wire::ScalarSize::kObjectType) return main_.pointer_mode;
  LibraryObject says;
  return Libraries::get().objects.get(sent_[p.by], &says) ? says.pointer_mode : 0;
}

// Whether it is in host memory: what the library will take it for.
bool LibraryCall::in_host_memory(const ParamSpec& p) const {
  const int32_t mode = pointer_mode(p);
  return mode == 0 || (p.host_mode != 0 && mode == p.host_mode);
}

// What is set must be an attribute of the table and have its size: another's value may be an
// address, of memory of anybody's. False: the session is rejected.
bool LibraryCall::is_attribute(int index, std::span<const std::byte> value) {
  const wire::LibraryStatus& status = entry_.table->spec->status;
  const wire::AttributeSpec* a = wire::find_attribute(f_.param[index], sent_);
  if (!a) return refuse(status.unsupported), true;
  if (a->bytes != value.size()) return refuse(status.bad_value), true;
  if (!a->address) return true;
  uint64_t address = 0;
  std::memcpy(&address, value.data(), sizeof address);
  return address == 0 || session_.device_range(address, 1) ||
         reject(index, "is an address that the session does not have");
}

// Numbers that the library computes with and does not look at first.
void LibraryCall::check_bounds(int index) {
  const ParamSpec& p = f_.param[index];
  if (!p.bounded || (p.when >= 0 && words_[p.when] == 0)) return;
  const auto within = [&](int64_t n) { return n >= p.least && n <= p.most; };
  const int32_t bad = entry_.table->spec->status.bad_value;
  if (p.kind == ParamKind::kValue) {
    if (!within(number(p, words_[index]))) refuse(bad);
    return;
  }
  if (words_[index] == 0) return;
  const auto* at = reinterpret_cast<const std::byte*>(words_[index]);
  const uint64_t n = wire::elements(f_, p, sent_);
  for (uint64_t i = p.skip; i < n; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, at + i * p.bytes, p.bytes);
    if (!within(number(p, word))) return refuse(bad);
  }
}

void LibraryCall::check_opaque(int index) {
  const auto* at = reinterpret_cast<const std::byte*>(words_[index]);
  if (!Libraries::get().given.has({at, f_.param[index].opaque}))
    refuse(entry_.table->spec->status.unsupported);
}

// The call succeeded: what the library made may come back. Elements that it left out are blank.
void LibraryCall::remember_opaque() {
  for (int i = 0; i < f_.params; ++i) {
    const ParamSpec& p = f_.param[i];
    if (!p.opaque || p.kind == ParamKind::kIn || words_[i] == 0) continue;
    const auto* at = reinterpret_cast<const std::byte*>(words_[i]);
    const uint64_t n = wire::elements(f_, p, sent_);
    for (uint64_t k = 0; k < n; ++k) {
      const std::span one(at + k * p.bytes, size_t{p.opaque});
      if (std::any_of(one.begin(), one.end(), [](std::byte b) { return b != std::byte{0}; }))
        Libraries::get().given.add(one);
    }
  }
}

int64_t LibraryCall::size_at(int which) const {
  const int8_t at = f_.sizes[which];
  return at < 0 ? -1 : number(f_.param[at], sent_[at]);
}

// What an analysis found is as large as its matrix: other sizes lead beyond it. Without any it
// leads to nowhere.
void LibraryCall::check_sizes() {
  for (const int8_t at : f_.measured) {
    LibraryObject object;
    if (at < 0 || !Libraries::get().objects.get(sent_[at], &object)) continue;
    bool same = object.sizes[0] >= 0;
    for (int i = 0; i < 3 && at == f_.measured[0]; ++i)
      same = same && (f_.sizes[i] < 0 || object.sizes[static_cast<size_t>(i)] == size_at(i));
    if (!same) return refuse(entry_.table->spec->status.bad_value);
  }
}

// A host workspace is the worker's own, as large as the library says here and now: it believes what
// it is told of the size.
bool LibraryCall::workspace_is_enough(int64_t* status) {
  const wire::WorkspaceQuery& q = f_.workspace;
  const wire::FunctionSpec& asked = entry_.table->spec->functions[q.function];
  Libraries::Entry* entry = Libraries::get().find(asked.id);
  void* function = entry ? Libraries::get().resolve(*entry) : nullptr;
  if (!function) return *status = entry_.table->spec->status.unsupported, false;
  uint64_t words[wire::kMaxLibraryParams] = {};
  alignas(16) std::byte written[wire::kMaxLibraryParams][kScalarRoom] = {};
  for (int i = 0; i < asked.params; ++i)
    words[i] = q.from[i] >= 0 ? words_[q.from[i]] : reinterpret_cast<uint64_t>(written[i]);
  *status = entry->thunk(function, words);
  if (*status != 0) return false;
  uint64_t needed = 0;
  std::memcpy(&needed, written[q.answer], sizeof needed);
  for (int i = 0; i < f_.params; ++i) {
    if (f_.param[i].kind != ParamKind::kHostWorkspace) continue;
    const uint64_t said = wire::elements(f_, f_.param[i], sent_);
    if (said < needed) return *status = entry_.table->spec->status.bad_value, false;
    words_[i] = said ? reinterpret_cast<uint64_t>(room(said)) : 0;
  }
  return true;
}

CUdeviceptr LibraryCall::copy_to_device(std::span<const std::byte> bytes) {
  const auto& d = session_.driver;
  CUdeviceptr at = 0;
  if (!take_for_library(session_, *vgpu_, Metered::kDevice, bytes.size())) return 0;
  if (call(d.cuMemAlloc_v2, &at, bytes.size()) != CUDA_SUCCESS) {
    give_for_library(session_, *vgpu_, Metered::kDevice, bytes.size());
    return 0;
  }
  copied_.push_back({at, bytes.size()});
  if (call(d.cuMemcpyAsync, at, reinterpret_cast<CUdeviceptr>(bytes.data()), bytes.size(),
           stream_) != CUDA_SUCCESS ||
      call(d.cuStreamSynchronize, stream_) != CUDA_SUCCESS)
    return 0;
  return at;
}

void LibraryCall::free_copies() {
  for (const Copied& c : copied_) {
    call(session_.driver.cuMemFree_v2, c.at);
    give_for_library(session_, *vgpu_, Metered::kDevice, c.bytes);
  }
  copied_.clear();
}

// Index arrays that cuSOLVER fetches from the device and follows on the CPU: read when the stream
// has come so far, checked, and given to it as a copy that no other command or guest's CPU names.
bool LibraryCall::check_indices(const IndexArrays& a, int64_t* status) {
  const wire::LibraryStatus& codes = entry_.table->spec->status;
  const auto size = [&](int8_t at) { return at < 0 ? 0 : number(f_.param[at], sent_[at]); };
  const int64_t rows = size(a.rows), columns = size(a.columns), count = size(a.count);
  const auto most = static_cast<int64_t>(kMostIndices);
  *status = codes.bad_value;
  if (rows < 0 || columns < 0 || count < 0) return false;
  *status = codes.unsupported;
  if (rows > most || columns > most || count > most) return false;
  const bool matrix = a.offsets >= 0;
  std::vector<int32_t> offsets, indices, seen;
  try {
    offsets.resize(matrix ? static_cast<size_t>(rows) + 1 : 0);
    indices.resize(static_cast<size_t>(matrix ? count : rows));
    seen.assign(matrix ? static_cast<size_t>(columns) : 0, -1);
  } catch (const std::bad_alloc&) {
    return *status = codes.failed, false;
  }
  *status = codes.bad_value;
  const auto fetch = [&](int8_t at, std::vector<int32_t>* to) {
    const uint64_t bytes = to->size() * sizeof(int32_t);
    if (bytes == 0) return true;
    if (words_[at] == 0) return false;
    if (!session_.device_range(words_[at], bytes))
      return reject(at, "is shorter than its count says");
    *status = codes.failed;
    const auto& d = session_.driver;
    if (call(d.cuMemcpyAsync, reinterpret_cast<CUdeviceptr>(to->data()), CUdeviceptr{words_[at]},
             size_t{bytes}, stream_) != CUDA_SUCCESS ||
        call(d.cuStreamSynchronize, stream_) != CUDA_SUCCESS)
      return false;
    *status = codes.bad_value;
    return true;
  };
  if (matrix && !fetch(a.offsets, &offsets)) return false;
  if (!fetch(a.indices, &indices)) return false;
  void* descriptor = a.descriptor < 0 ? nullptr : reinterpret_cast<void*>(words_[a.descriptor]);
  if (matrix ? !is_matrix(offsets, indices, index_base(descriptor), std::move(seen))
             : !is_permutation(indices))
    return false;
  *status = codes.failed;
  const auto give = [&](int8_t at, const std::vector<int32_t>& numbers) {
    if (numbers.empty()) return true;
    words_[at] = copy_to_device(std::as_bytes(std::span(numbers)));
    return words_[at] != 0;
  };
  return (!matrix || give(a.offsets, offsets)) && give(a.indices, indices);
}

}  // namespace sluice::worker
