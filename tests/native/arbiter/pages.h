// SPDX-License-Identifier: Apache-2.0
// Workers that are the words which they write on their pages, and an arbiter that reads them.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "arbiter/arbiter.h"

namespace sluice::arbiter {

constexpr Nanoseconds kMs = 1'000'000;

struct Worker {
  std::unique_ptr<TurnPage> page = std::make_unique<TurnPage>();
  bool stopped = false;

  int64_t until() const { return page->until; }
  bool has_turn() const { return until() != kNoTurn && page->returned != page->turn; }
  void notice() { page->seen = page->turn.load(); }
  void want() { page->wants = 1; }
  void give_back(bool more) {
    page->wants = more;
    page->returned = page->turn.load();
  }
};

class Node {
 public:
  explicit Node(std::vector<std::string> gpus = {"GPU-a"}) : gpus_(std::move(gpus)) {}

  Worker& add(const std::string& name, const std::string& tenant, uint32_t percent,
              bool capped = false) {
    return add(name, tenant, gpus_, percent, capped);
  }
  Worker& add(const std::string& name, const std::string& tenant,
              const std::vector<std::string>& gpus, uint32_t percent, bool capped = false) {
    std::string error;
    Worker& w = workers[name];
    EXPECT_TRUE(arbiter->join(name, {tenant, gpus, percent, capped}, w.page.get(), now, &error))
        << error;
    return w;
  }
  // Until then, in steps of 0.1 ms; workers notice their turns, unless they are stopped.
  void run(Nanoseconds time) {
    for (const Nanoseconds end = now + time; now < end; now += kMs / 10) step();
  }
  void step() {
    arbiter->look(now);
    for (auto& [name, w] : workers)
      if (!w.stopped) w.notice();
  }
  // As busy workers do: with a turn they work until its end, then give back and want more.
  void work(Nanoseconds time, std::map<std::string, Nanoseconds>* had) {
    for (const Nanoseconds end = now + time; now < end; now += kMs / 10) {
      step();
      for (auto& [name, w] : workers) {
        if (w.stopped || !w.has_turn()) continue;
        (*had)[name] += kMs / 10;
        if (now >= w.until()) w.give_back(true);
      }
    }
  }

  std::unique_ptr<Arbiter> arbiter = std::make_unique<Arbiter>();
  std::map<std::string, Worker> workers;
  Nanoseconds now = 1'000 * kMs;

 private:
  std::vector<std::string> gpus_;
};

}  // namespace sluice::arbiter
