// SPDX-License-Identifier: Apache-2.0
#include "arbiter/cut.h"

#include <algorithm>
#include <numeric>

namespace sluice::arbiter {

void draw_cut(std::vector<Progress>& ranks, std::vector<uint32_t>& order) {
  order.resize(ranks.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, {}, [&](uint32_t i) { return ranks[i].communicator; });
  for (auto first = order.begin(); first != order.end();) {
    const auto last = std::find_if(first, order.end(), [&](uint32_t i) {
      return ranks[i].communicator != ranks[*first].communicator;
    });
    uint64_t most = 0;
    for (auto at = first; at != last; ++at)
      if (ranks[*at].working) most = std::max(most, ranks[*at].issued);
    for (auto at = first; at != last; ++at) ranks[*at].upto = std::max(ranks[*at].issued, most);
    first = last;
  }
}

}  // namespace sluice::arbiter
