// SPDX-License-Identifier: Apache-2.0
// Good frames of a client that profiles, on a node without CUPTI.
#include <cstddef>

#include "tests/native/roundtrip/valid_frames.h"
#include "wire/bodies/profiling.h"

namespace sluice::test {

using Rig = FurnishedRig;

void add_profile_frames(std::vector<ValidFrame>* all) {
  all->push_back(make("ProfileSet", wire::kProfileSet, true, "", wire::ProfileSet{0}));
  all->push_back(make("ProfileMark", wire::kProfileMark, false, "", wire::ProfileMark{7, 0}));
  all->push_back(make("ProfileFetch", wire::kProfileFetch, true, "", wire::ProfileFetch{1, 0}));
  auto f =
      make("ProfileStream", wire::kProfileStream, true, "", wire::ProfileStream{Rig::kStreamId});
  f.handles = {offsetof(wire::ProfileStream, stream)};
  all->push_back(f);
}

}  // namespace sluice::test
