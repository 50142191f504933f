// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a job stop: the least consistent cut that holds all that they have issued,
// step by step and without I/O. A collective ends when all ranks of its communicator have issued
// it, so whoever has issued fewer than another goes on until it has as many; on its way it may
// issue more on other communicators, which the next step sees. Nothing is issued that does not come
// before what a rank had issued at first, so there is an end.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::arbiter {

// Of one rank on one communicator.
struct Progress {
  uint64_t communicator;
  uint64_t issued;
  bool working;       // it has work under way, which may wait for the others
  uint64_t upto = 0;  // found: how many it may issue; never fewer than it has
};

// One that has issued most but has no work under way waits for nobody, and nobody follows it. The
// order of `ranks` stays; `order` is memory for it.
void draw_cut(std::vector<Progress>& ranks, std::vector<uint32_t>& order);

}  // namespace sluice::arbiter
