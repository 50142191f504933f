// SPDX-License-Identifier: Apache-2.0
// Good frames of the linker.
#include "tests/native/roundtrip/valid_frames.h"

namespace sluice::test {

using Rig = FurnishedRig;

void add_link_frames(std::vector<ValidFrame>* all) {
  const uint32_t option[2] = {CU_JIT_MAX_REGISTERS, 32};
  const std::string options(reinterpret_cast<const char*>(option), sizeof option);
  using B = wire::LinkBegin;
  auto f = make("LinkBegin", wire::kLinkBegin, false, "", B{handle_id(HandleKind::kLink, 9), 1, 0},
                options);
  f.minted = {offsetof(B, id)};
  all->push_back(f);
  using A = wire::LinkAdd;
  f = make("LinkAdd", wire::kLinkAdd, true, "cuLinkAddData_v2",
           A{Rig::kLinkId, Rig::kBlob, CU_JIT_INPUT_PTX, 1, 4, 0}, options + "name");
  f.handles = {offsetof(A, id)};
  f.choices = {offsetof(A, type)};
  all->push_back(f);
  f = make("LinkComplete", wire::kLinkComplete, true, "cuLinkComplete", wire::LinkId{Rig::kLinkId});
  f.handles = {0};
  all->push_back(f);
  f = make("LinkRead", wire::kLinkRead, true, "", wire::LinkRead{Rig::kLinkId, 0, 4});
  f.handles = {0};
  f.linked = true;
  all->push_back(f);
  f = make("LinkEnd", wire::kLinkEnd, false, "cuLinkDestroy", wire::LinkId{Rig::kLinkId});
  f.handles = {0};
  f.linked = true;
  all->push_back(f);
}

}  // namespace sluice::test
