// SPDX-License-Identifier: Apache-2.0
// Between the policy (schedule.h) and the workers' pages (turn_page.h): reads what workers say on
// them, asks the policy, and writes whose turn it is. No sockets and no clock: service.h has them.
//
// A tenant is a grant, its members are the workers of its sessions here. A member is open while it
// may work: its page says until when. Its tenant has given back once all that are open have.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "arbiter/cut.h"
#include "arbiter/residency.h"
#include "arbiter/schedule.h"
#include "arbiter/together.h"
#include "arbiter/turn_page.h"

namespace sluice::arbiter {

// A vGPU of a member, in the order of its page; bytes.
struct MemberMemory {
  std::string gpu;  // UUID
  uint64_t promised = 0, fixed = 0;
  uint64_t out = 0;  // in host memory already
};

struct TenantRequest {
  std::string tenant;
  std::vector<std::string> gpus;  // UUIDs, of this member
  uint32_t percent = 100;
  bool capped = false;
  uint32_t priority = 0;
  bool away = false;  // it is suspended, and wants no memory
  uint64_t kept = 0;  // host memory that is there for it
  std::vector<MemberMemory> memory =
      {};  // of a member whose memory can move; none: it is not counted
};

// A tenant whose memory is to move, and how much of it on which GPUs. None: all comes in.
struct MemoryOrder {
  std::string tenant;
  bool out = false;
  std::map<std::string, uint64_t> bytes;
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
  // The tenant comes to a consistent cut (gang.cc) and has no turn, until it may go on or for so
  // long. Of one that is not there nothing is held.
  void hold(const std::string& tenant, Nanoseconds lasts, Nanoseconds now);
  void go_on(const std::string& tenant);
  // Who is held and has nothing under way any more; each is told once.
  std::vector<std::string> take_still() { return std::exchange(still_, {}); }
  // Whether tenants that do not fill a GPU together may run at once on it.
  void allow_together(bool allowed) { together_allowed_ = allowed; }

  // Reads the pages and writes them. The time at which it has to look again even if nobody rings.
  Nanoseconds look(Nanoseconds now);

  // Memory (memory.cc): how much of a GPU's there is for tenants, and who is idle. What the server
  // says of a tenant that it was told to move, or that it found: so much of it is out, by GPU. With
  // a reason: it could not be moved; `missing`: so much less was free than it needed to come in.
  bool set_memory(const std::string& gpu, uint64_t bytes, uint64_t margin, std::string* error);
  void set_idle(Nanoseconds idle) { residency_.set_idle(idle); }
  void memory_moved(const std::string& tenant, const std::map<std::string, uint64_t>& out,
                    const std::string& why_not, const std::map<std::string, uint64_t>& missing,
                    Nanoseconds now);
  // So much host memory is there for it alone.
  void memory_kept(const std::string& tenant, uint64_t bytes);
  // What the last look found is to be moved; each is told once.
  std::vector<MemoryOrder> take_memory_orders() { return std::exchange(memory_orders_, {}); }
  std::map<std::string, MemoryFigures> memory_figures(Nanoseconds now) const;

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
    static constexpr uint64_t kBoundless = ~0ull;
    std::vector<uint32_t> memory_gpus;  // of its vGPUs, in the order of its page
    ByGpu<uint64_t> promised, fixed;
    std::vector<uint64_t> room;    // as its page says; kBoundless where it need not ask
    uint32_t calls = 0;            // as its page said at the last look at memory
    uint64_t begun = 0, done = 0;  // the same
    bool wants() const { return !absent && page->wants.load(std::memory_order_acquire) != 0; }
  };
  struct Tenant {
    std::string name;
    std::vector<Member*> members;
    Nanoseconds until = kNoTurn;  // of its turn
    Nanoseconds called_back = 0;  // when its turn was over; 0: it is not
    // From when on its members are helped again to end it, and until when they are.
    Nanoseconds help_again = 0, help_until = 0;
    Nanoseconds cut_again = 0;   // from when on its cut is drawn anew
    Nanoseconds held_until = 0;  // 0: it is not held
    bool still = false;          // that was told
    uint32_t priority = 0, percent = 100;
    bool away = false;
    bool lags = false;  // a member has issued less than others, as the last cut found
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
  // memory.cc: whose memory is on the GPUs.
  void claim_memory(uint32_t id, Member& m, const TenantRequest& request, Nanoseconds now);
  void claim_again(uint32_t id, const Tenant& tenant, Nanoseconds now);
  void look_memory(Nanoseconds now, Nanoseconds* next);
  void see_memory(uint32_t id, Tenant& tenant, Nanoseconds now);
  ByGpu<MemoryUse> memory_of(Member& m) const;
  static void grant_memory(Member& m);
  void look_held(Nanoseconds now, Nanoseconds* next);
  void publish(uint32_t id, Tenant& tenant, Nanoseconds now);
  void apply(const Decision& decision, Nanoseconds now);
  void give(Member& m, int64_t until, Nanoseconds now);
  static void say(Member& m, int64_t until);
  static void close(Member& m);
  void charge(Member& m);

  uint32_t number_of(const std::string& gpu);
  ByGpu<uint64_t> by_number(const std::map<std::string, uint64_t>& bytes);

  Schedule schedule_;
  Residency residency_;
  Nanoseconds memory_at_ = 0;  // when it is looked at next, if nobody calls
  bool memory_changed_ = false;
  std::vector<MemoryOrder> memory_orders_;
  std::vector<std::string> still_;
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
