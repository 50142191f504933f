// SPDX-License-Identifier: Apache-2.0
#include "tests/native/roundtrip/library_frames.h"

#include "library/objects.h"
#include "tests/native/roundtrip/fake_libraries.h"
#include "wire/bodies/cudnn_ctc.h"
#include "wire/cudnn_backend.h"
#include "wire/curand.h"
#include "wire/library_sizes.h"

namespace sluice::test {

using wire::FunctionSpec;
using wire::kCarried;
using wire::ParamKind;
using wire::ParamSpec;
using wire::ScalarSize;

namespace {

constexpr uint64_t kFirstObject = 2;

// One of the attributes that may be set: an address, where there is one.
const wire::AttributeSpec& attribute_of(const ParamSpec& p) {
  for (const wire::AttributeSpec* a = p.attributes; a->bytes; ++a)
    if (a->address) return *a;
  return *p.attributes;
}

// Numbers that go together: three of everything, floats, attributes of eight bytes.
uint64_t number(const FunctionSpec& f, int index) {
  if (f.param[index].bounded) return static_cast<uint64_t>(f.param[index].least);
  for (int i = 0; i < f.params; ++i) {
    const ParamSpec& p = f.param[i];
    if (p.kind == ParamKind::kAttribute && p.count[0] == index) return attribute_of(p).bytes;
    if (p.count[0] == index || p.count[1] == index) return 3;
    if (p.size == ScalarSize::kNcclType && p.by2 == index) return 1;     // ncclScalarHostImmediate
    if (p.size == ScalarSize::kComputeType && p.by == index) return 68;  // CUBLAS_COMPUTE_32F
    if (p.kind == ParamKind::kAttribute && p.by == index) return attribute_of(p).name;
  }
  return 0;
}

// Behind the words: `n` bytes, as 8-byte words.
void append(ValidFrame* f, size_t index, uint64_t n, uint64_t each) {
  f->words[index] = kCarried | n;
  f->words.resize(f->words.size() + wire::round_up(n, 8) / 8, each);
}

void append_list(ValidFrame* f, FurnishedRig& rig, size_t index, const ParamSpec& p, uint64_t n) {
  const size_t at = f->words.size() * 8;
  const bool handles = p.kind == ParamKind::kInHandles;
  append(f, index, n * 8, handles ? library_object(p.object) : rig.address() + 4096);
  for (uint64_t i = 0; i < n; ++i) {
    if (handles)
      f->handles.push_back(at + i * 8);
    else
      f->addresses.push_back({at + i * 8, 1, true});
  }
}

void add_param(ValidFrame* f, FurnishedRig& rig, const FunctionSpec& spec, int index) {
  const ParamSpec& p = spec.param[index];
  const auto i = static_cast<size_t>(index);
  const size_t offset = i * 8;
  const uint64_t n = wire::elements(spec, p, f->words.data());
  switch (p.kind) {
    case ParamKind::kValue:
    case ParamKind::kNothing:
    case ParamKind::kHostWorkspace:
      return;
    case ParamKind::kHandle:
      f->words[i] = library_object(p.object);
      f->handles.push_back(offset);
      return;
    case ParamKind::kStream:
      f->words[i] = FurnishedRig::kStreamId;
      f->handles.push_back(offset);
      return;
    case ParamKind::kEvent:
      f->words[i] = FurnishedRig::kEventId;
      f->handles.push_back(offset);
      return;
    case ParamKind::kAddress:
      f->words[i] = rig.address() + 64 * i;
      f->addresses.push_back({offset, 1, true});
      return;
    case ParamKind::kScalar:
      return append(f, i, 16, 0x3ff0000000000000);
    case ParamKind::kResult:
      f->words[i] = kCarried | 16;
      return;
    case ParamKind::kIn:
    case ParamKind::kInOut: {
      const size_t at = f->words.size();
      append(f, i, n * wire::element_bytes(p, f->words.data()), 0x0000000100000001);
      if (p.opaque)
        worker::Libraries::get().given.add(
            {reinterpret_cast<const std::byte*>(f->words.data() + at), p.opaque});
      return;
    }
    case ParamKind::kString:
      return append(f, i, 8, 0x0074786574);
    case ParamKind::kOut:
      f->words[i] = kCarried | (n * p.bytes);
      return;
    case ParamKind::kOutAddress:
    case ParamKind::kOutHandle:
      f->words[i] = kCarried | 8;
      return;
    case ParamKind::kMint:
      f->words[i] = kNewObject;
      f->minted.push_back(offset);
      return;
    case ParamKind::kInHandles:
    case ParamKind::kInAddresses:
      return append_list(f, rig, i, p, n);
    case ParamKind::kAttribute: {
      const bool address = wire::carries_address(p, f->words.data());
      if (address) f->addresses.push_back({f->words.size() * 8, 1, true});
      return append(f, i, n * p.bytes, address ? rig.address() + 128 : 1);
    }
  }
}

}  // namespace

const std::vector<const FunctionSpec*>& library_functions() {
  static const auto* all = [] {
    auto* functions = new std::vector<const FunctionSpec*>;
    for (const worker::LibraryTable& t : worker::library_tables())
      for (uint16_t i = 0; i < t.spec->count; ++i) functions->push_back(&t.spec->functions[i]);
    return functions;
  }();
  return *all;
}

uint64_t host_generator() { return handle_id(HandleKind::kLibraryObject, 207); }

uint64_t library_object(uint8_t type) {
  return handle_id(HandleKind::kLibraryObject, kFirstObject + type);
}

// What the worker asks the libraries for beside the calls of a command, as NVIDIA's would answer.
void answer_questions(FakeLibraries& fake) {
  // Five timesteps, two texts, an alphabet of four: what the frame of CTC below brings.
  fake.instead["cudnnGetTensorNdDescriptor"] = [](const uint64_t* words) {
    const int32_t sizes[] = {5, 2, 4}, dimensions = 3;
    const auto requested = std::min<int32_t>(static_cast<int32_t>(words[1]), dimensions);
    if (words[3]) std::memcpy(reinterpret_cast<void*>(words[3]), &dimensions, 4);
    if (words[4] && requested > 0)
      std::memcpy(reinterpret_cast<void*>(words[4]), sizes, static_cast<size_t>(requested) * 4);
    return 0;
  };
  fake.instead["cusparseGetMatIndexBase"] = [](const uint64_t*) { return 0; };
  // Eight ranks.
  fake.instead["ncclCommCount"] = [](const uint64_t* words) {
    const int32_t ranks = 8;
    if (words[1]) std::memcpy(reinterpret_cast<void*>(words[1]), &ranks, sizeof ranks);
    return 0;
  };
  static const auto sizes = [] {  // once: there are thousands of functions, and as many rigs
    std::vector<const FunctionSpec*> found;
    for (const FunctionSpec* f : library_functions()) {
      const std::string_view name = f->name;
      if (name.starts_with("cusolverDnX") && name.ends_with("_bufferSize")) found.push_back(f);
    }
    return found;
  }();
  for (const FunctionSpec* f : sizes) {
    fake.instead[f->name] = [f](const uint64_t* words) {
      const uint64_t bytes = 3;
      for (int i = 0; i < f->params; ++i)
        if (f->param[i].kind == ParamKind::kOut && words[i])
          std::memcpy(reinterpret_cast<void*>(words[i]), &bytes, sizeof bytes);
      return 0;
    };
  }
}

void furnish_libraries() {
  static const uint8_t most = [] {
    uint8_t type = sluice::library::k_cudnn_backend;
    for (const FunctionSpec* f : library_functions())
      for (int i = 0; i < f->params; ++i) type = std::max(type, f->param[i].object);
    return type;
  }();
  FakeLibraries& fake = FakeLibraries::get();
  auto& objects = worker::Libraries::get().objects;
  // What the last rig left goes first: an object that was ended while another one led to it is
  // destroyed here, which the stand-ins must still know.
  std::vector<uint64_t> old;
  objects.for_each([&](uint64_t id, const worker::LibraryObject&) { old.push_back(id); });
  for (const uint64_t id : old) {
    worker::LibraryObject object;
    objects.take(id, &object);
  }
  fake.clear();
  for (uint8_t type = 1; type <= most; ++type) {
    const uint64_t made = fake.make_object(4);  // an int for those libraries that number theirs
    worker::LibraryObject object{type, reinterpret_cast<void*>(made)};
    object.sizes = {0, 0, 0};  // analysed, for a matrix of nothing
    if (type == sluice::library::k_cudnn_backend) object.by_value = worker::by_value({8});
    objects.add(library_object(type), object);
  }
  worker::LibraryObject host{sluice::library::k_curand,
                             reinterpret_cast<void*>(fake.make_object(8))};
  answer_questions(fake);
  host.host_memory = true;
  fake.in_host_memory.insert(reinterpret_cast<uint64_t>(host.pointer));
  objects.add(host_generator(), host);
}

ValidFrame library_frame(FurnishedRig& rig, const FunctionSpec& spec) {
  ValidFrame f;
  f.name = spec.name;
  f.function = spec.id;
  f.answered = true;
  f.words.resize(spec.params);
  for (int i = 0; i < spec.params; ++i)
    if (spec.param[i].kind == ParamKind::kValue) f.words[static_cast<size_t>(i)] = number(spec, i);
  for (int i = 0; i < spec.params; ++i) add_param(&f, rig, spec, i);
  return f;
}

void add_hand_written_frames(FurnishedRig& rig, std::vector<ValidFrame>* all) {
  namespace ids = sluice::library;
  const auto add = [&](const char* name, uint16_t function, bool answered, auto body,
                       std::vector<uint64_t> tail) {
    static_assert(sizeof body % 8 == 0);
    ValidFrame f;
    f.name = name;
    f.function = function;
    f.answered = answered;
    f.words.resize(sizeof body / 8);
    std::memcpy(f.words.data(), &body, sizeof body);
    f.words.insert(f.words.end(), tail.begin(), tail.end());
    all->push_back(f);
    return &all->back();
  };
  const uint64_t descriptor = library_object(ids::k_cudnn_backend);
  constexpr uint64_t kHandles = wire::kBackendDescriptor, kInt64 = 3;
  ValidFrame* f = add("BackendBuild", ids::id_sluiceCudnnBackendBuild, true,
                      wire::BackendBuild{kNewObject, 17, 2},
                      {900 | kInt64 << 32, 1, 16, 901 | kHandles << 32, 2, descriptor, descriptor});
  f->minted = {offsetof(wire::BackendBuild, id)};
  f->handles = {sizeof(wire::BackendBuild) + 40, sizeof(wire::BackendBuild) + 48};
  f = add("BackendGet", ids::id_sluiceCudnnBackendGet, true,
          wire::BackendGet{descriptor, 905, kInt64, 4, 0, 0}, {});
  f->handles = {offsetof(wire::BackendGet, id)};
  f = add("BackendGet, descriptors", ids::id_sluiceCudnnBackendGet, true,
          wire::BackendGet{descriptor, 905, kHandles, 2, 2, 3}, {kNewObject, kNextObject});
  f->handles = {offsetof(wire::BackendGet, id)};
  f->minted = {sizeof(wire::BackendGet), sizeof(wire::BackendGet) + 8};
  // A question, and one of the descriptors that it gives.
  f = add("BackendLook", ids::id_sluiceCudnnBackendLook, true, wire::BackendLook{2, 2},
          {descriptor, descriptor, 905 | kHandles << 32, 2, 3, 906 | kInt64 << 32, 4, 1ull << 32});
  f->handles = {sizeof(wire::BackendLook), sizeof(wire::BackendLook) + 8};
  f = add("BackendDestroy", ids::id_sluiceCudnnBackendDestroy, false,
          wire::BackendDestroy{descriptor}, {});
  f->handles = {offsetof(wire::BackendDestroy, id)};
  f = add("BackendExecute", ids::id_sluiceCudnnBackendExecute, true,
          wire::BackendExecute{library_object(ids::k_cudnn), descriptor, rig.address(), 2, 8},
          {7, 8, rig.address() + 256, kCarried | 0, 0x3ff0000000000000});
  f->handles = {offsetof(wire::BackendExecute, handle), offsetof(wire::BackendExecute, plan)};
  f->addresses = {{offsetof(wire::BackendExecute, workspace), 1, true},
                  {sizeof(wire::BackendExecute) + 16, 1, true}};
  f = add("CurandHost", ids::id_sluiceCurandHost, true,
          wire::CurandHost{host_generator(), 0, 0, 0, 0, wire::CurandMakes::kSeeds, 0}, {});
  f->handles = {offsetof(wire::CurandHost, generator)};
  add("CurandTable", ids::id_sluiceCurandTable, true, wire::CurandTable{2, 0, 0, 64}, {});
  add("CurandDistribution", ids::id_sluiceCurandDistribution, true, wire::CurandDistribution{3, 0},
      {});
  using wire::CtcLoss;
  const uint64_t tensor = library_object(ids::k_cudnn_tensor);
  // Three labels, two lengths of texts, two of inputs.
  f = add("CtcLoss", ids::id_sluiceCudnnCtcLoss, true,
          CtcLoss{library_object(ids::k_cudnn), tensor, tensor,
                  library_object(ids::k_cudnn_ctc_loss), rig.address(), rig.address() + 4096,
                  rig.address() + 8192, rig.address() + 12288, 64, 0, 2, 3, 0},
          {1 | 2ull << 32, 3 | 1ull << 32, 2 | 5ull << 32, 5});
  f->handles = {offsetof(CtcLoss, handle), offsetof(CtcLoss, probs_descriptor),
                offsetof(CtcLoss, gradients_descriptor), offsetof(CtcLoss, loss_descriptor)};
  f->addresses = {{offsetof(CtcLoss, probs), 1, true},
                  {offsetof(CtcLoss, costs), 1, true},
                  {offsetof(CtcLoss, gradients), 1, true},
                  {offsetof(CtcLoss, workspace), 1, true}};
}

}  // namespace sluice::test
