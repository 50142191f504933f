// SPDX-License-Identifier: Apache-2.0
// Good frames of green contexts, of names in code, of atomics and of tensor maps' addresses; and
// how the recording driver answers about green contexts.
#include "tests/native/roundtrip/valid_frames.h"
#include "wire/bodies/green_contexts.h"
#include "wire/generated.h"

namespace sluice::test {

namespace {

using Rig = FurnishedRig;
using Frames = std::vector<ValidFrame>;

constexpr uint64_t kGreenId = handle_id(HandleKind::kGreenContext, 3);

void furnish(Rig& rig) {
  worker::Session& s = rig.session();
  if (!s.objects.dev_resources.empty()) return;
  CUdevResource r{};
  r.type = CU_DEV_RESOURCE_TYPE_SM;
  for (unsigned count : {132u, 64u}) {
    r.sm.smCount = count;
    s.objects.dev_resources.push_back({r, 0});
  }
  s.objects.dev_descriptions.push_back(nullptr);
  worker::GreenObject green;
  green.context = Recording::get().mint<CUcontext>(Recording::get().contexts);
  s.objects.green_contexts.add(kGreenId, green);
}

void add_resources(Frames* all) {
  using R = wire::SluiceDevResource;
  for (uint32_t of : {0u, 1u}) {
    auto f = make(of ? "DevResource, context" : "DevResource", wire::kSluiceDevResource, true,
                  of ? "cuCtxGetDevResource" : "cuDeviceGetDevResource",
                  R{0, of, CU_DEV_RESOURCE_TYPE_SM});
    f.choices = {offsetof(R, of)};
    all->push_back(f);
  }
  auto f = make("DevResource, green", wire::kSluiceDevResource, true, "cuGreenCtxGetDevResource",
                R{kGreenId, 1, CU_DEV_RESOURCE_TYPE_SM});
  f.handles = {offsetof(R, green)};
  all->push_back(f);
  using S = wire::SluiceDevResourceSplit;
  f = make("DevResourceSplit", wire::kSluiceDevResourceSplit, true, "cuDevSmResourceSplitByCount",
           S{0, 2, 0, 0, 16, {}});
  f.choices = {offsetof(S, input), offsetof(S, groups), offsetof(S, query)};
  all->push_back(f);
  using D = wire::SluiceDevResourceDescribe;
  const uint32_t numbers[] = {0, 1};
  f = make("DevResourceDescribe", wire::kSluiceDevResourceDescribe, true,
           "cuDevResourceGenerateDesc", D{2, {}}, text(numbers));
  f.choices = {offsetof(D, count), sizeof(D), sizeof(D) + 4};
  all->push_back(f);
}

void add_contexts(Frames* all) {
  using C = wire::SluiceGreenCreate;
  auto f =
      make("GreenCreate", wire::kSluiceGreenCreate, true, "cuGreenCtxCreate",
           C{handle_id(HandleKind::kGreenContext, 9), handle_id(HandleKind::kStream, 9), 0, 1, {}});
  f.minted = {offsetof(C, id), offsetof(C, standard)};
  f.choices = {offsetof(C, description), offsetof(C, flags)};
  all->push_back(f);
  f = make("GreenDestroy", wire::kSluiceGreenDestroy, true, "cuGreenCtxDestroy",
           wire::SluiceGreenDestroy{kGreenId});
  f.handles = {0};
  all->push_back(f);
  using S = wire::SluiceGreenStreamCreate;
  for (uint32_t flags : {0u, 1u}) {
    f = make(flags ? "GreenStreamCreate" : "GreenStreamCreate, blocking",
             wire::kSluiceGreenStreamCreate, true,
             flags ? "cuGreenCtxStreamCreate" : "cuStreamCreateWithPriority",
             S{handle_id(HandleKind::kStream, 9), kGreenId, flags, 0});
    f.minted = {offsetof(S, id)};
    f.handles = {offsetof(S, green)};
    f.choices = {offsetof(S, flags)};
    all->push_back(f);
  }
  using E = wire::SluiceContextEvent;
  for (uint32_t wait : {0u, 1u})
    for (uint64_t green : {uint64_t{0}, kGreenId}) {
      f = make("ContextEvent", wire::kSluiceContextEvent, true,
               green ? (wait ? "cuGreenCtxWaitEvent" : "cuGreenCtxRecordEvent")
                     : (wait ? "cuCtxWaitEvent" : "cuCtxRecordEvent"),
               E{green, Rig::kEventId, wait, {}});
      f.handles = {offsetof(E, event)};
      if (green) f.handles.push_back(offsetof(E, green));
      f.choices = {offsetof(E, wait)};
      all->push_back(f);
    }
}

}  // namespace

void add_green_frames(Rig& rig, Frames* all) {
  furnish(rig);
  add_resources(all);
  add_contexts(all);
  using N = wire::SluiceCodeNames;
  for (uint32_t kind : {0u, 1u}) {
    auto f = make(kind ? "CodeNames, library" : "CodeNames, module", wire::kSluiceCodeNames, true,
                  kind ? "cuLibraryGetKernelCount" : "cuModuleGetFunctionCount",
                  N{kind ? Rig::kLibraryId : Rig::kModuleId, kind, 0});
    f.handles = {offsetof(N, code)};
    f.choices = {offsetof(N, kind)};
    all->push_back(f);
  }
  using A = wire::SluiceAtomicCapabilities;
  for (uint32_t to : {1u, ~0u}) {
    auto f =
        make(to == 1 ? "AtomicCapabilities, peer" : "AtomicCapabilities, host",
             wire::kSluiceAtomicCapabilities, true,
             to == 1 ? "cuDeviceGetP2PAtomicCapabilities" : "cuDeviceGetHostAtomicCapabilities",
             A{0, to, CU_ATOMIC_OPERATION_CAS, {}});
    f.choices = {offsetof(A, operation), offsetof(A, to)};
    f.devices = {offsetof(A, from)};
    all->push_back(f);
  }
  all->push_back(make("TensorMapAddress", wire::kSluiceTensorMapAddress, true,
                      "cuTensorMapReplaceAddress", wire::SluiceTensorMapAddress{rig.address()},
                      std::string(128, 'm')));
}

// Pieces of eight multiprocessors and more, as on an H200.
void Recording::install_green() {
  const auto whole = [this](CUdevResource* r) {
    *r = {};
    r->type = CU_DEV_RESOURCE_TYPE_SM;
    r->sm = {132, 8, 8};
    r->_internal_padding[50] = 77;  // what a program must not be able to change
    return status;
  };
  SLUICE_ON(cuDeviceGetDevResource) = [=](CUdevice, CUdevResource* r, CUdevResourceType) {
    return whole(r);
  };
  SLUICE_ON(cuCtxGetDevResource) = [=](CUcontext, CUdevResource* r, CUdevResourceType) {
    return whole(r);
  };
  SLUICE_ON(cuGreenCtxCreate) = [this](CUgreenCtx* g, CUdevResourceDesc, CUdevice, unsigned) {
    return *g = reinterpret_cast<CUgreenCtx>(next_ += 64), CUDA_SUCCESS;
  };
  SLUICE_ON(cuCtxFromGreenCtx) = [this](CUcontext* c, CUgreenCtx) {
    return *c = mint<CUcontext>(contexts), CUDA_SUCCESS;
  };
  SLUICE_ON(cuGreenCtxStreamCreate) = [this](CUstream* s, CUgreenCtx, unsigned, int) {
    return *s = mint<CUstream>(streams), CUDA_SUCCESS;
  };
}

}  // namespace sluice::test
