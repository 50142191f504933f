// SPDX-License-Identifier: Apache-2.0
#include "worker/merge/reader.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "library/objects.h"
#include "wire/bodies/cudnn_backend.h"
#include "wire/library_sizes.h"
#include "worker/library/library.h"
#include "worker/merge/recogniser.h"

namespace sluice::worker::merge {

namespace {

namespace ids = sluice::library;
using wire::CallState;
using wire::ParamKind;

constexpr size_t kMostPeculiar = 1024;
// Ids from which on commands of our own follow those of libraries (native/api/library_ids.lock).
constexpr uint16_t kBehindLibraries = 4032;

template <class T>
bool take(const Command& c, T* value) {
  if (c.body.size() < sizeof *value) return false;
  std::memcpy(value, c.body.data(), sizeof *value);
  return true;
}

uint64_t word(const Command& c, int index) {
  uint64_t value = 0;
  const size_t at = static_cast<size_t>(index) * 8;
  if (index >= 0 && at + 8 <= c.body.size()) std::memcpy(&value, c.body.data() + at, 8);
  return value;
}

// Commands of our own that change nothing of what a piece names.
Kind kind_of(uint16_t function) {
  switch (function) {
    case wire::kPing:
    case wire::kUpload:
    case wire::kMemoryMap:  // where nothing is mapped
    case wire::kDeviceIdle:
    case wire::kArenaRegister:
    case wire::kMark:
    case wire::kHostFunction:
    case wire::kCopyToDevice:
    case wire::kCopyToHost:
    case wire::kCopyOnDevice:
    case wire::kFillDevice:
    case wire::kCodeLoad:
    case wire::kCodeLoadKnown:
    case wire::kFunctionGet:
    case wire::kGlobalGet:
    case wire::kLaunch:
    case wire::kStreamCreate:
    case wire::kStreamSynchronize:
    case wire::kStreamQuery:
    case wire::kStreamWaitEvent:
    case wire::kStreamMemOps:
    case wire::kEventCreate:
    case wire::kEventDestroy:
    case wire::kEventRecord:
    case wire::kEventSynchronize:
    case wire::kEventQuery:
    case wire::kEventElapsed:
    case wire::kSharedEventCreate:
    case wire::kSharedEventDestroy:
    case wire::kSharedEventRecord:
    case wire::kSharedEventWait:
    case wire::kSharedEventQuery:
    case wire::kSharedEventSynchronize:
    case wire::kReadOutput:
    case wire::kReplyRest:
    case wire::kCaptureBegin:
    case wire::kCaptureEnd:
    case wire::kCaptureInfo:
    case wire::kCaptureUpdate:
    case wire::kCaptureNode:
    case wire::kCaptureCopy:
    case wire::kGraphCreate:
    case wire::kGraphCopy:
    case wire::kGraphDestroy:
    case wire::kGraphNodeAdd:
    case wire::kGraphNodeSet:
    case wire::kGraphNodeGet:
    case wire::kGraphList:
    case wire::kGraphEdit:
    case wire::kGraphInstantiate:
    case wire::kGraphExecUpdate:
    case wire::kGraphExecDestroy:
    case wire::kGraphLaunch:
    case wire::kGraphWords:
    case wire::kShadowMake:
    case wire::kShadowWrite:
    case wire::kShadowRead:
    case wire::kSignalWait:
    case wire::kSignalDone:
    case wire::kGpuFigures:
    case wire::kMemoryCredit:
    case wire::kMergeFigures:
    case wire::kAllocationCreate:
      return Kind::kBoundary;
    case wire::kMemoryUnmap:
    case wire::kAllocationDestroy:
    case wire::kAllocationMap:
    case wire::kAllocationUnmap:
    case wire::kAllocationAccess:
      return Kind::kEndsCopies;
    default:
      return Kind::kEndsAll;
  }
}

// What tells an object one thing, whatever else it was told, and can be told again.
bool may_be_set_in_a_piece(const Libraries::Entry& entry) {
  const wire::FunctionSpec& f = *entry.spec;
  const std::string_view library = entry.table->spec->name;
  if (f.state != CallState::kSets || !f.commutes || f.launches || f.grouped || f.changes[0] >= 0 ||
      f.computes >= 0 || f.remember.stream >= 0 || f.params < 2 ||
      f.param[0].kind != ParamKind::kHandle || (library != "cublaslt" && library != "cublas"))
    return false;
  return std::all_of(f.param + 1, f.param + f.params, [](const wire::ParamSpec& p) {
    return p.kind == ParamKind::kValue || p.kind == ParamKind::kAttribute;
  });
}

// No more of a word than its parameter has, as the library gets it.
uint64_t what_it_sets(const wire::FunctionSpec& f, const Command& c) {
  if (f.set_by < 0) return 0;
  const uint32_t bytes = f.param[f.set_by].bytes;
  return bytes < 8 ? word(c, f.set_by) & ((uint64_t{1} << bytes * 8) - 1) : word(c, f.set_by);
}

// Tells of the objects that a call names.
template <class To>
void for_objects(const Command& c, To&& to) {
  if (c.header.function == ids::id_sluiceCudnnBackendExecute) {
    to(word(c, 0));
    to(word(c, 1));
    return;
  }
  const wire::FunctionSpec& f = *Libraries::get().find(c.header.function)->spec;
  for (int i = 0; i < f.params; ++i)
    if (f.param[i].kind == ParamKind::kHandle) to(word(c, i));
}

// What may be called in a capture and does the same there: nothing of these keeps state that a call
// advances, as generators of random numbers do.
bool in_a_piece(const Libraries::Entry& entry) {
  const wire::FunctionSpec& f = *entry.spec;
  if (!f.launches || f.state != CallState::kNone || f.grouped || f.text || f.computes >= 0 ||
      f.changes[0] >= 0 || f.index_arrays > 0 || f.measures >= 0 || f.workspace.function >= 0)
    return false;
  const std::string_view library = entry.table->spec->name;
  if (library == "cublaslt") return f.id == ids::id_cublasLtMatmul;
  if (library == "cudnn") return f.id == ids::id_cudnnBatchNormalizationForwardInference;
  if (library != "cublas") return false;
  for (int i = 0; i < f.params; ++i) {
    const ParamKind kind = f.param[i].kind;
    if (kind != ParamKind::kValue && kind != ParamKind::kHandle && kind != ParamKind::kAddress &&
        kind != ParamKind::kScalar && kind != ParamKind::kStream)
      return false;
  }
  return true;
}

}  // namespace

bool Reader::of_a_library(uint16_t function) {
  return function >= wire::kFirstLibraryFunction && function < kBehindLibraries;
}

bool Reader::in_window(uint64_t address) const {
  return std::ranges::any_of(session_.vgpus,
                             [&](const auto& v) { return v->window_holds(address); });
}

// Whether a setting may be made once more whenever that may be: memory other than the vGPUs'
// windows can go, and what names it is refused from then on.
bool Reader::stays_valid(const wire::FunctionSpec& f, const Command& c) const {
  uint64_t words[wire::kMaxLibraryParams]{};
  const size_t bytes = size_t{f.params} * 8;
  if (c.body.size() < bytes) return false;
  std::memcpy(words, c.body.data(), bytes);
  if (f.set_by >= 0) words[f.set_by] = what_it_sets(f, c);
  for (int i = 0; i < f.params; ++i) {
    if (!wire::carries_address(f.param[i], words)) continue;
    // The value is all that travels behind the words.
    const uint64_t address = word(c, f.params);
    if (address != 0 && !in_window(address)) return false;
  }
  return true;
}

Read Reader::read_launch(const Command& c) const {
  wire::Launch l;
  if (!take(c, &l) || l.param_bytes > c.body.size() - sizeof l || peculiar_.contains(l.stream))
    return {Kind::kBoundary};
  return {Kind::kMergeable, true, l.stream, sizeof l, sizeof l + l.param_bytes};
}

// Fills and copies of another GPU's memory, or of memory that the client has too, are not simply
// nodes.
Read Reader::read_memory(const Command& c) const {
  if (session_.vgpus.size() != 1) return {Kind::kBoundary};
  wire::FillDevice f;
  wire::CopyOnDevice d;
  const bool fill = c.header.function == wire::kFillDevice;
  if (fill ? !take(c, &f) : !take(c, &d)) return {Kind::kBoundary};
  const bool own = fill ? in_window(f.address) : in_window(d.to) && in_window(d.from);
  const uint64_t stream = fill ? f.stream : d.stream;
  if (!own || peculiar_.contains(stream)) return {Kind::kBoundary};
  return {Kind::kMergeable, false, stream};
}

// Whatever a library's object is told is in the keys of the calls with it, so nothing else ends.
Read Reader::read_library(const Command& c) {
  const uint16_t function = c.header.function;
  if (function == ids::id_sluiceCudnnBackendBuild) {
    libraries_.made(word(c, 0));
    return {Kind::kBoundary};
  }
  if (function == ids::id_sluiceCudnnBackendDestroy) {
    libraries_.gone(word(c, 0));
    return {Kind::kBoundary};
  }
  if (function == ids::id_sluiceCudnnBackendExecute) {
    if (libraries_.full() || !libraries_.told(word(c, 0))) return {Kind::kBoundary};
    const uint64_t stream = libraries_.stream_of(word(c, 0));
    if (peculiar_.contains(stream)) return {Kind::kBoundary};
    return {Kind::kMergeable, false, stream};
  }
  Libraries::Entry* entry = Libraries::get().find(function);
  if (!entry) return {Kind::kBoundary};
  const wire::FunctionSpec& f = *entry->spec;
  int handle = -1, stream = -1;
  for (int i = 0; i < f.params; ++i) {
    const ParamKind kind = f.param[i].kind;
    if (kind == ParamKind::kMint) libraries_.made(word(c, i));
    if (kind == ParamKind::kHandle && handle < 0) handle = i;
    if (kind == ParamKind::kStream && stream < 0) stream = i;
  }
  const uint64_t id = word(c, handle);
  if (f.state == CallState::kDestroys) libraries_.gone(id);
  const bool sets = may_be_set_in_a_piece(*entry);
  if (f.state == CallState::kSets)
    libraries_.set(id, what_it_sets(f, c), f, c, sets && stays_valid(f, c));
  for (const int8_t index : f.changes)
    if (index >= 0) libraries_.changed(word(c, index));
  if (sets && !libraries_.full()) return {.kind = Kind::kMergeable, .sets = true};
  if (libraries_.full() || handle < 0 || !in_a_piece(*entry)) return {Kind::kBoundary};
  const uint64_t where = stream >= 0 ? word(c, stream) : libraries_.stream_of(id);
  if (peculiar_.contains(where)) return {Kind::kBoundary};
  return {Kind::kMergeable, false, where};
}

Read Reader::read(const Command& c) {
  const uint16_t function = c.header.function;
  Read r;
  if (of_a_library(function))
    r = read_library(c);
  else if (function == wire::kLaunch)
    r = read_launch(c);
  else if ((function == wire::kFillDevice || function == wire::kCopyOnDevice) && !c.answered())
    r = read_memory(c);
  else
    r = {kind_of(function)};
  if (function == wire::kStreamAttribute && peculiar_.size() < kMostPeculiar)
    peculiar_.insert(word(c, 0));
  if (c.answered() || c.bulk || sizeof c.header + c.body.size() > Frames::kMostBytes ||
      peculiar_.size() >= kMostPeculiar)
    if (r.kind == Kind::kMergeable) r.kind = Kind::kBoundary;
  return r;
}

uint64_t Reader::key(const Command& c, const Read& r, const LibraryStates& libraries) const {
  const uint16_t function = c.header.function;
  uint64_t sum = mix(uint64_t{c.header.context} << 16 | function, c.header.size);
  if (r.launch) {
    sum = hash_of(c.body.first(r.varying), sum);
    return hash_of(c.body.subspan(r.varying_end), sum);
  }
  sum = hash_of(c.body, sum);
  if (!of_a_library(function)) return sum;
  if (r.sets) return mix(sum, libraries.number_of(word(c, 0)));
  for_objects(c, [&](uint64_t id) { sum = mix(sum, libraries.of(id)); });
  return sum;
}

std::span<const std::byte> Reader::told_last(const Command& c) const {
  const wire::FunctionSpec& f = *Libraries::get().find(c.header.function)->spec;
  return libraries_.last(word(c, 0), what_it_sets(f, c), c.header.function);
}

void Reader::settings_of(const Command& c, std::set<uint64_t>* known, Frames* to) const {
  if (!of_a_library(c.header.function)) return;
  for_objects(c, [&](uint64_t id) {
    if (known->insert(id).second) libraries_.all_of(id, to);
  });
}

bool Reader::same_now(const Frames& before, const Frames& frames,
                      std::span<const Read> reads) const {
  std::set<uint64_t> ids;
  for (size_t i = 0; i < frames.size(); ++i)
    if (const Command c = frames.at(i); of_a_library(c.header.function))
      for_objects(c, [&](uint64_t id) { ids.insert(id); });
  LibraryStates tried = libraries_.some(ids);
  const auto set = [&](const Command& c) {
    const wire::FunctionSpec& f = *Libraries::get().find(c.header.function)->spec;
    tried.set(word(c, 0), what_it_sets(f, c), f, c, false);
  };
  for (size_t i = 0; i < before.size(); ++i) set(before.at(i));
  for (size_t i = 0; i < frames.size(); ++i) {
    const Command c = frames.at(i);
    if (reads[i].sets) set(c);
    if (key(c, reads[i], tried) != frames.key(i)) return false;
  }
  return true;
}

}  // namespace sluice::worker::merge
