// SPDX-License-Identifier: Apache-2.0
// What became of the session's commands, for its client.
#include <algorithm>

#include "wire/merge_figures.h"
#include "worker/decoder.h"
#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

void merge_figures(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  d.fixed<wire::MergeFiguresAsk>();
  if (!d.ok()) return s.reject("MergeFigures is cut short");
  const MergingFigures& f = s.figures.merging;
  wire::MergeFigures answer{};
  answer.replayed = f.replayed.load();
  answer.graphs = f.launches.load();
  answer.known = (uint64_t{1} << wire::kLeftReasons) - 1;
  for (size_t i = 0; i < wire::kLeftReasons; ++i)
    answer.left[i] = f.left_by(static_cast<wire::LeftSingle>(i));
  reply.put(answer);
}

}  // namespace

void add_merging_handlers(DispatchTable& t) { t[wire::kMergeFigures].run = merge_figures; }

}  // namespace sluice::worker
