// SPDX-License-Identifier: Apache-2.0
// Good frames of NCCL's groups: calls of functions, and communicators made in each way.
#include "library/objects.h"
#include "tests/native/roundtrip/library_frames.h"
#include "wire/bodies/nccl.h"

namespace sluice::test {

namespace {

namespace ids = sluice::library;

constexpr uint64_t pair(uint64_t low, uint64_t high) { return low | high << 32; }

// Puts one call into the group: its head, then `body`, whose offset is returned.
size_t add_call(ValidFrame* f, uint16_t function, std::vector<uint64_t> body) {
  f->words.push_back(pair(function, FurnishedRig::kContext));
  f->words.push_back(body.size() * 8);
  const size_t at = f->words.size() * 8;
  f->words.insert(f->words.end(), body.begin(), body.end());
  return at;
}

ValidFrame& add_group(std::vector<ValidFrame>* all, const char* name, uint32_t calls,
                      bool grouped) {
  ValidFrame& f = all->emplace_back();
  f.name = name;
  f.function = ids::id_sluiceNcclGroup;
  f.answered = true;
  f.words = {pair(calls, grouped ? 1 : 0)};
  return f;
}

std::vector<uint64_t> make(wire::NcclHow how, uint64_t parent, uint32_t count, uint32_t config,
                           uint32_t net, uint32_t name) {
  return {kNewObject,          parent,         pair(static_cast<uint32_t>(how), 2), pair(1, 0), 0,
          pair(count, config), pair(net, name)};
}

void mints(ValidFrame* f, size_t at) {
  f->minted.push_back(at + offsetof(wire::NcclMake, id));
  f->choices.push_back(at + offsetof(wire::NcclMake, how));
}

}  // namespace

void add_nccl_frames(FurnishedRig& rig, std::vector<ValidFrame>* all) {
  using wire::NcclHow;
  const uint64_t comm = library_object(ids::k_nccl);
  ValidFrame* f = &add_group(all, "NcclGroup, calls", 2, true);
  size_t at =
      add_call(f, ids::id_ncclSend, {rig.address(), 16, 7, 1, comm, FurnishedRig::kStreamId});
  f->addresses.push_back({at, 1, true});
  f->handles = {at + 32, at + 40};
  at = add_call(f, ids::id_ncclRecv, {rig.address(), 16, 7, 1, comm, 0});
  f->addresses.push_back({at, 1, true});
  f->handles.push_back(at + 32);

  // A unique id; the configuration up to its name of a network; that name.
  f = &add_group(all, "NcclGroup, a rank", 1, true);
  auto body = make(NcclHow::kRank, 0, 1, 40, 3, 0);
  body.resize(body.size() + 16, 0x5a5a5a5a5a5a5a5a);
  body.insert(body.end(), {40, 0xcafebeef, 1, 0, 0, 0x6f6c});
  mints(f, add_call(f, 0, body));

  f = &add_group(all, "NcclGroup, many ids", 1, false);
  body = make(NcclHow::kScalable, 0, 2, 0, 0, 0);
  body.resize(body.size() + 32, 0x5a5a5a5a5a5a5a5a);
  mints(f, add_call(f, 0, body));

  f = &add_group(all, "NcclGroup, a split", 1, false);
  at = add_call(f, 0, make(NcclHow::kSplit, comm, 0, 0, 0, 0));
  mints(f, at);
  f->handles.push_back(at + offsetof(wire::NcclMake, parent));

  f = &add_group(all, "NcclGroup, a shrink", 1, false);
  body = make(NcclHow::kShrink, comm, 3, 0, 0, 0);
  body.insert(body.end(), {pair(4, 5), 6});
  at = add_call(f, 0, body);
  mints(f, at);
  f->handles.push_back(at + offsetof(wire::NcclMake, parent));
}

}  // namespace sluice::test
