// SPDX-License-Identifier: Apache-2.0
// Between the policy (schedule.h) and the workers' pages (turn_page.h): reads what workers say on
// them, asks the policy, and writes whose turn it is. No sockets and no clock: service.h has them.
//
// A tenant is a grant, its members are the workers of its sessions here. A member is open while it
// may work: its page says until when. Its tenant has given back once all that are open have.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "arbiter/cut.h"
#include "arbiter/schedule.h"
#include "arbiter/together.h"
#include "arbiter/turn_page.h"

namespace sluice::arbiter {

struct TenantRequest {
  std::string tenant;
  std::vector<std::string> gpus;  // UUIDs, of this member
  uint32_t percent = 100;
  bool capped = false;
};

class Arbiter {
 public:
  explicit Arbiter(const ScheduleSettings& settings = {}, const TogetherSettings& together = {})
      : schedule_(settings), together_settings_(together) {}

  // False with `error`. `page` stays the caller's, until leave(). Of a member that is there already
  // everything but its page is taken anew.
  bool join(const std::string& member, const TenantRequest& request, TurnPage* page,
            Nanoseconds now, std::string* error);
  void leave(const std::string& member, Nanoseconds now);
  bool share(const std::string& tenant, uint32_t percent, bool capped, Nanoseconds now);
  void set_period(Nanoseconds period) { schedule_.set_period(period); }
  // Whether tenants that do not fill a GPU together may run at once on it.
  void allow_together(bool allowed) { together_allowed_ = allowed; }

  // Reads the pages and writes them. The time at which it has to look again even if nobody rings.
  Nanoseconds look(Nanoseconds now);

  bool has(const std::string& member) const { return members_.contains(member); }
  std::map<std::string, TenantFigures> figures(Nanoseconds now) const;

 private:
  struct Member {
    TurnPage* page = nullptr;
    uint32_t tenant = 0;
    uint64_t gpus = 0;
    bool open = false;
    bool noticed = false;     // its turn, by the worker
    bool absent = false;      // it did not notice the last one, and is taken to be stopped
    uint32_t turn = 0;        // the last that it was given
    uint64_t overran = 0;     // as its page said
    Nanoseconds told = 0;     // when its page changed
    int64_t until = kNoTurn;  // as its page says
    bool behind = false;      // as it was found last: others have issued more
    bool cut_changed = false;
    bool wants() const { return !absent && page->wants.load(std::memory_order_acquire) != 0; }
  };
  struct Tenant {
    std::string name;
    std::vector<Member*> members;
    Nanoseconds until = kNoTurn;  // of its turn
    Nanoseconds called_back = 0;  // when its turn was over; 0: it is not
    // From when on its members are helped again to end it, and until when they are.
    Nanoseconds help_again = 0, help_until = 0;
    Nanoseconds cut_again = 0;  // from when on its cut is drawn anew
    bool lags = false;          // a member has issued less than others, as the last cut found
  };
  // A place of a member's page.
  struct Place {
    Member* member;
    size_t place;
  };

  bool gpu_bits(const std::vector<std::string>& gpus, uint64_t* bits, std::string* error);
  void gather(Tenant& tenant);
  void read(Member& m, Nanoseconds now, Nanoseconds* next);
  void read(uint32_t id, Tenant& tenant, Nanoseconds now, Nanoseconds* next);
  // gang.cc: what members of a tenant whose turn is over may still do.
  void help(uint32_t id, Tenant& tenant, Nanoseconds now, Nanoseconds* next);
  bool may_help(uint32_t id, Tenant& tenant, Nanoseconds now, Nanoseconds* next);
  bool draw_cut(Tenant& tenant, Nanoseconds now);
  void help_laggards(Tenant& tenant, Nanoseconds until, Nanoseconds now);
  static void end_cut(Tenant& tenant);
  // side_by_side.cc: who runs at once with others, and who does no more.
  Seen seen(uint32_t id, const Tenant& tenant, Nanoseconds now) const;
  void look_together(Nanoseconds now, Nanoseconds* next);
  bool is_together(uint32_t id) const;
  void publish(uint32_t id, Tenant& tenant, Nanoseconds now);
  void apply(const Decision& decision, Nanoseconds now);
  void give(Member& m, int64_t until, Nanoseconds now);
  static void say(Member& m, int64_t until);
  static void close(Member& m);
  void charge(Member& m);

  Schedule schedule_;
  const TogetherSettings together_settings_;
  bool together_allowed_ = true;
  std::vector<std::string> gpus_;   // by the number of their bit
  std::vector<Together> together_;  // as these
  std::map<std::string, Member> members_;
  std::map<uint32_t, Tenant> tenants_;
  std::map<std::string, uint32_t> ids_;
  uint32_t next_ = 1;
  // Of a cut that is drawn; kept, so that it takes no memory each time.
  std::vector<Progress> progress_;
  std::vector<Place> places_;
  std::vector<uint32_t> order_;
  std::vector<std::vector<Seen>> seen_;  // at a look, by GPU
};

}  // namespace sluice::arbiter
