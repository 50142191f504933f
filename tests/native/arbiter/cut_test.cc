// SPDX-License-Identifier: Apache-2.0
// Ranks with programs of any shape stop where nothing that was issued waits for what was not, and
// none of them goes further than it has to.
#include "arbiter/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace sluice::arbiter {
namespace {

// Each rank issues what it takes part in, in one order that all have.
class Job {
 public:
  Job(std::mt19937& random, size_t ranks) : programs_(ranks), at_(ranks) {
    std::vector<std::vector<size_t>> communicators(1 + random() % 8);
    for (auto& members : communicators)
      for (size_t rank = 0; rank < ranks; ++rank)
        if (random() % 2) members.push_back(rank);
    for (int event = 0; event < 60; ++event) {
      const size_t communicator = random() % communicators.size();
      for (const size_t rank : communicators[communicator])
        programs_[rank].push_back({event, communicator + 1});
    }
    for (size_t rank = 0; rank < ranks; ++rank) at_[rank] = random() % (programs_[rank].size() + 1);
  }

  std::vector<Progress> progress(std::vector<size_t>* ranks) const {
    std::vector<Progress> all;
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      std::map<uint64_t, uint64_t> issued;
      for (size_t i = 0; i < programs_[rank].size(); ++i)
        issued[programs_[rank][i].communicator] += i < at_[rank];
      for (const auto& [communicator, count] : issued) {
        all.push_back({communicator, count, true});
        ranks->push_back(rank);
      }
    }
    return all;
  }
  // One that lags issues one thing more. False: none does.
  bool step(std::mt19937& random) {
    std::vector<size_t> ranks;
    std::vector<uint32_t> order;
    auto all = progress(&ranks);
    draw_cut(all, order);
    std::set<size_t> lagging;
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].upto > all[i].issued) lagging.insert(ranks[i]);
    if (lagging.empty()) return false;
    auto one = lagging.begin();
    std::advance(one, random() % lagging.size());
    ++at_[*one];
    return true;
  }
  // Where each has to be so that all that was issued can end, by the events themselves.
  std::vector<size_t> least() const {
    std::vector<size_t> at = at_;
    for (bool moved = true; moved;) {
      moved = false;
      std::set<int> issued;
      for (size_t rank = 0; rank < at.size(); ++rank)
        for (size_t i = 0; i < at[rank]; ++i) issued.insert(programs_[rank][i].event);
      for (size_t rank = 0; rank < at.size(); ++rank)
        for (size_t i = at[rank]; i < programs_[rank].size(); ++i)
          if (issued.contains(programs_[rank][i].event)) at[rank] = i + 1, moved = true;
    }
    return at;
  }
  const std::vector<size_t>& at() const { return at_; }

 private:
  struct Issue {
    int event;
    uint64_t communicator;
  };
  std::vector<std::vector<Issue>> programs_;
  std::vector<size_t> at_;  // how much of it each has issued
};

TEST(Cut, IsTheLeastAtWhichNothingWaits) {
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    Job job(random, 1 + random() % 6);
    const std::vector<size_t> least = job.least();
    while (job.step(random)) {
    }
    ASSERT_EQ(job.at(), least) << "the job " << i;
  }
}

TEST(Cut, NobodyFollowsWhoWaitsForNobody) {
  std::vector<Progress> ranks{
      {7, 5, false}, {7, 3, true}, {7, 4, true}, {9, 1, false}, {9, 0, true}};
  std::vector<uint32_t> order;
  draw_cut(ranks, order);
  EXPECT_EQ(ranks[0].upto, 5u);
  EXPECT_EQ(ranks[1].upto, 4u);
  EXPECT_EQ(ranks[2].upto, 4u);
  EXPECT_EQ(ranks[3].upto, 1u);
  EXPECT_EQ(ranks[4].upto, 0u);
}

}  // namespace
}  // namespace sluice::arbiter
