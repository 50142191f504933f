// SPDX-License-Identifier: Apache-2.0
#include "worker/worker_process.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "channel/futex.h"
#include "channel/thread.h"
#include "process/log.h"
#include "process/sandbox.h"
#include "worker/concurrent.h"
#include "worker/device_output.h"
#include "worker/gpus.h"
#include "worker/library/charge.h"
#include "worker/library/library.h"
#include "worker/node_links.h"
#include "worker/session_endpoint.h"
#include "worker/session_status.h"
#include "worker/shared_event.h"

namespace sluice::worker {

namespace {
constexpr int kLookMs = 10'000;      // how often it looks whether a client's machine still answers
constexpr int kLookOftenMs = 2'000;  // the same where another connection may follow
// How long after the client's last byte what came before may take: it has gone, as its work will.
constexpr int kLastWorkMs = 2'000;
// How long the last words of a process may take. What keeps them from being said keeps nothing
// else.
constexpr unsigned kLastWordsSeconds = 5;

process::End lost(Endpoint& endpoint) {
  using wire::EndCause;
  if (endpoint.closed_by_client()) return client_left();
  if (endpoint.resumable())
    return {EndCause::kClientLost,
            "its client made no other connection in time after the last had broken"};
  return {EndCause::kClientLost, "the client's machine has not answered for three minutes"};
}
}  // namespace

bool WorkerProcess::prepare(std::string* error) {
  process::join_cgroup(options_.cgroup);
  Libraries::set_path(options_.libraries);
  if (!DeviceOutput::instance().redirect(error)) return false;
  if (!options_.rdma.empty()) process::allow_locked_memory();
  const std::string& beside = options_.beside;
  const std::string visible = options_.visible + (beside.empty() ? "" : "," + beside);
  if (!visible.empty()) setenv("CUDA_VISIBLE_DEVICES", visible.c_str(), 1);
  // MPS knows its clients by their user, which they are before the driver begins.
  if (options_.concurrent && !process::drop_privileges(options_.uid, options_.gid, error))
    return false;
  // Modules are loaded whole when they are asked for: what is charged is what was loaded.
  const bool meter = options_.meter && options_.driver.find('/') != std::string::npos;
  if (meter && !load_meter(error)) return false;
  driver_ = Driver::load(options_.driver, error);
  if (!driver_) return false;
  if (meter) bind_meter(*driver_);
  if (open_gpus(*driver_, beside.empty() ? "" : options_.visible, &gpus_, error))
    return !options_.concurrent || runs_under_mps(*driver_, gpus_, error);
  *error = options_.driver + ": " + *error + (visible.empty() ? "" : " among " + visible);
  return false;
}

// As the user that the process stays, since the kernel takes nothing from who has become another
// after he opened the device; and before the filter, after which nothing is opened for writing.
// Where it fails sessions go over TCP, and their clients are told why.
void WorkerProcess::open_rdma() {
  if (options_.rdma.empty()) return;
  channel::RdmaChoice choice;
  if (channel::read_rdma_choice(options_.rdma, &choice))
    rdma_.device = channel::RdmaDevice::open(choice, &rdma_.why_none);
  else
    rdma_.why_none = "--rdma " + options_.rdma + " is no NAME[:PORT[:GID]]";
  if (!rdma_.device) process::log_error("no session goes over RDMA: " + rdma_.why_none);
}

bool WorkerProcess::confine(uint32_t uid, uint32_t gid, std::string* error) {
  if (!process::drop_privileges(uid, gid, error)) return false;
  open_rdma();
  return !options_.sandbox ||
         process::restrict_system_calls(gpus_[0].software(), rdma_.device != nullptr, error);
}

// The user of its grant, before anything of the client's is looked at.
bool WorkerProcess::become(const process::Message& m, std::string* error) {
  uint64_t uid = 0, gid = 0;
  if (!m.number("uid", &uid) || !m.number("gid", &gid)) {
    *error = "this worker waits for its user, and the message has no uid or gid";
    return false;
  }
  return confine(static_cast<uint32_t>(uid), static_cast<uint32_t>(gid), error);
}

void WorkerProcess::announce() {
  std::map<std::string, std::string> v;
  for (size_t i = 0; i < gpus_.size(); ++i) {
    const std::string key = "device." + std::to_string(i) + ".";
    v[key + "uuid"] = uuid_text(gpus_[i].uuid);
    v[key + "name"] = gpus_[i].name;
    v[key + "memory_mib"] = std::to_string(gpus_[i].memory_bytes >> 20);
    v[key + "pci_bus_id"] = gpus_[i].pci_bus_id;
    v[key + "attributes"] = gpus_[i].attributes;
  }
  v["devices"] = std::to_string(gpus_.size());
  int version = 0;
  driver_->cuDriverGetVersion(&version);
  v["cuda_version"] = std::to_string(version);
  v["driver_name"] = gpus_[0].software() ? "" : driver_->kernel_driver;
  control_.send("ready", v);
}

// The process exits here, from whichever thread learned of the end: the driver's objects go with
// it, which is the point.
void WorkerProcess::ended(const process::End& why) {
  signal(SIGALRM, [](int) { _exit(0); });
  alarm(kLastWordsSeconds);
  auto v = session_status(session_.get());
  why.write(v);
  if (session_ && session_->plan.merging != Merging::kOff)
    process::log_last("merged launches: " + merging_text(*session_));
  process::log_last("session ended: " + why.reason + "; commands=" + v["commands"] +
                    " merged=" + v["merged"] + " in " + v["merged_launches"] + " graphs" +
                    " round_trips=" + v["round_trips"] + " bytes_in=" + v["bytes_in"] +
                    " bytes_out=" + v["bytes_out"] + " gpu_busy_ms=" + v["gpu_busy_ms"]);
  if (session_ && session_->turns) session_->turns->leave();
  control_.send("ended", v);
  if (options_.concurrent && session_) {
    alarm(0);
    drain(*session_);
  }
  _exit(0);
}

void WorkerProcess::refuse(const process::Message& m, const std::string& why) {
  process::log_error("the session cannot start: " + why);
  for (int fd : m.descriptors) ::close(fd);
  control_.send("error", {{"message", why}});
}

// Gives it what the node keeps for it, and opens it. False with `error`: what was reserved by then
// stays so.
bool WorkerProcess::open_session(Session& session, const process::Message& m, std::string* error) {
  const int code = m.descriptor("code"), shared_code = m.descriptor("shared_code");
  if (code >= 0 || shared_code >= 0)
    session.code_cache = std::make_unique<CodeCache>(
        code, shared_code, [this](const char* verb, const std::string& name, int descriptor) {
          control_.send(verb, {{"name", name}}, descriptor);
        });
  if (const int ledger = m.descriptor("ledger"); ledger >= 0) {
    uint64_t slot = GrantLedger::kSlots;
    m.number("ledger_slot", &slot);
    session.ledger = GrantLedger::open(ledger, static_cast<uint32_t>(slot), error);
    if (!session.ledger) return false;
  }
  if (const int page = m.descriptor("turns"); page >= 0) {
    session.turns = TurnKeeper::open(page, m.descriptor("turns_bell"), error);
    if (!session.turns) return false;
  }
  if (session.plan.windows > 0)
    session.links = std::make_unique<NodeLinks>(session, [this](uint32_t peer, uint32_t epoch) {
      const std::string there = std::to_string(peer);
      if (epoch == 0) return control_.send("link_over", {{"peer", there}});
      return control_.send("link", {{"peer", there}, {"epoch", std::to_string(epoch)}});
    });
  session.broker = &broker_;
  session.concurrent = options_.concurrent;
  return session.open(gpus_, error);
}

void WorkerProcess::start_session(process::Message& m) {
  if (session_) return refuse(m, "this worker has a session already");
  std::string error;
  if (options_.waits && !become(m, &error)) {
    refuse(m, error);
    _exit(1);
  }
  options_.waits = false;
  const SessionPlan plan = read_plan(m);
  process::log_name(plan.id, plan.grant);
  Libraries::get().set_client_version(plan.cuda_version);
  std::unique_ptr<Endpoint> endpoint = open_endpoint(m, plan, std::exchange(rdma_, {}), &error);
  if (!endpoint) {
    m.descriptors = {};
    return refuse(m, error);
  }
  auto session = std::make_unique<Session>(*driver_, std::move(endpoint), plan);
  if (!open_session(*session, m, &error)) {
    m.descriptors = {};
    refuse(m, error);
    _exit(1);  // windows may be half reserved: a fresh worker takes the next session
  }
  session_ = std::move(session);
  meter_session(session_.get());
  client_pidfd_ = m.descriptor("client_pidfd");
  run_session();
}

void WorkerProcess::run_session() {
  executor_ =
      std::make_unique<Executor>(*session_, [this](const process::End& why) { ended(why); });
  suspension_ = std::make_unique<Suspension>(
      *session_, *executor_, [this](const auto& said) { control_.send("suspension", said); });
  const SessionPlan& plan = session_->plan;
  std::string what, error;
  for (const auto& v : plan.vgpus)
    what += " " + std::to_string(v.memory_mib) + "MiB/" + std::to_string(v.compute_percent) +
            "% of " + v.device;
  const std::string channel = channel_of(*session_);
  const uint32_t version = plan.cuda_version;
  if (version != 0)
    what +=
        ", for CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  process::log_info("session started over " + channel + ":" + what);
  control_.send("started", {{"id", plan.id}, {"channel", channel}});
  if (!DeviceOutput::instance().take_errors(&error) || !executor_->start())
    executor_->end(
        {wire::EndCause::kWorkerFailed,
         "the worker can start no thread: the limit of threads (session_pids) is reached"},
        CUDA_ERROR_OUT_OF_MEMORY);
}

// In a thread of its own: the client is waited for, and need not answer. With a subflow it is no
// other connection but one beside; with RDMA it follows the present one only if that is agreed.
void WorkerProcess::resume(process::Message& m) {
  std::string error;
  uint64_t epoch = 0, subflow = 0;
  m.number("epoch", &epoch);
  const bool beside = m.verb == "subflow" && m.number("subflow", &subflow);
  const bool by_rdma = m.text("rdma") == "1";
  auto connection = open_connection(m, &error);
  if (!connection) return process::log_error(error);
  if (!session_ || !session_->endpoint().resumable()) return;
  // Held in a word that the thread may copy.
  const auto next = std::make_shared<std::unique_ptr<channel::ResumableStream::Connection>>(
      std::move(connection));
  const bool started = channel::start_detached("resume", [=, this] {
    Endpoint& endpoint = session_->endpoint();
    if (beside)
      endpoint.take_subflow(static_cast<uint32_t>(epoch), static_cast<uint32_t>(subflow),
                            std::move(*next));
    else if (by_rdma)
      endpoint.resume_over_rdma(static_cast<uint32_t>(epoch), std::move(*next));
    else if (endpoint.resume(static_cast<uint32_t>(epoch), std::move(*next)))
      process::log_info("the session goes on over another connection");
  });
  if (!started) process::log_error("another connection finds no thread to begin it");
}

// To another node's worker, or that there is none.
void WorkerProcess::link(process::Message& m) {
  uint64_t peer = 0, epoch = 0, over = 0;
  m.number("peer", &peer);
  m.number("epoch", &epoch);
  m.number("over", &over);
  std::string error;
  const auto next = std::make_shared<std::unique_ptr<channel::ResumableStream::Connection>>();
  if (m.verb == "link" && !(*next = open_connection(m, &error))) process::log_error(error);
  NodeLink* const link = session_ && session_->links ? session_->links->at(peer) : nullptr;
  if (!link) return;
  const bool started = channel::start_detached("link", [=, why = m.text("message")] {
    if (*next)
      link->connected(static_cast<uint32_t>(epoch), std::move(*next));
    else
      link->refused(why, over != 0);
  });
  if (!started) process::log_error("a connection to another node finds no thread to begin it");
}

// A new server has to be told what the last one knew.
void WorkerProcess::meet_again() {
  if (session_->ledger) control_.send("ledger", {}, session_->ledger->descriptor());
  if (session_->turns) {
    const int with[] = {session_->turns->page_descriptor(), session_->turns->bell_descriptor()};
    control_.send("turns", {}, with);
  }
  broker_.offer_again();
  if (session_->links) session_->links->ask_again();
}

std::map<std::string, std::string> WorkerProcess::status() const {
  auto v = session_status(session_.get());
  if (suspension_) suspension_->show(&v);
  return v;
}

// Steps of a suspension; without a session there is none.
void WorkerProcess::suspend(process::Message& m) {
  uint64_t number = 0;
  if (suspension_ && m.verb == "suspend" && m.number("drain_ms", &number))
    return suspension_->suspend(number);
  if (suspension_ && m.verb == "wake") return suspension_->wake(m.text("keep") == "1");
  if (suspension_ && m.verb == "give_up")
    return suspension_->give_up(m.number("mib", &number) ? number << 20 : ~0ull);
  if (suspension_ && m.verb == "delist") return suspension_->delist();
  if (suspension_ && m.verb == "moved") {
    std::vector<std::string> gpus;
    m.number("vgpus", &number);
    for (uint64_t i = 0; i < number; ++i)
      gpus.push_back(m.text("vgpu." + std::to_string(i) + ".device"));
    return suspension_->moved(gpus);
  }
  if (suspension_ && m.verb == "move_out") return suspension_->move_out(m.text("by"));
  if (suspension_ && m.verb == "plan") {
    std::vector<uint64_t> out;
    m.number("vgpus", &number);
    for (uint64_t i = 0; i < number; ++i) {
      uint64_t mib = 0;
      m.number("vgpu." + std::to_string(i) + ".out_mib", &mib);
      out.push_back(mib << 20);
    }
    return suspension_->plan(out);
  }
  const int memory = m.descriptor("memory");
  if (suspension_ && m.verb == "memory" && memory >= 0 && m.number("bytes", &number))
    return suspension_->take_memory({memory, number, m.text("made_by") == "driver"});
  for (int fd : m.descriptors) ::close(fd);
}

void WorkerProcess::handle(process::Message& m) {
  if (m.verb == "session") return start_session(m);
  if (m.verb == "resume" || m.verb == "subflow") return resume(m);
  if (m.verb == "link" || m.verb == "no_link") return link(m);
  if (m.verb == "suspend" || m.verb == "memory" || m.verb == "plan" || m.verb == "move_out" ||
      m.verb == "delist" || m.verb == "moved" || m.verb == "wake" || m.verb == "give_up")
    return suspend(m);
  if (broker_.take(m)) return;
  for (int fd : m.descriptors) ::close(fd);
  const auto answer = [this] { control_.send("status", status()); };
  if (m.verb == "status") return answer();
  if (m.verb == "end") {
    if (!executor_) _exit(0);
    executor_->end(process::End::ordered(m), CUDA_ERROR_SYSTEM_NOT_READY);
    // It came back: another thread ends the session already, has its last words to say, and exits.
    for (;;) poll(nullptr, 0, -1);
  }
  if (m.verb == "hold" || m.verb == "release") {
    if (session_)
      for (auto& v : session_->vgpus) m.verb == "hold" ? v->gate->hold() : v->gate->release();
    return answer();
  }
  if (m.verb == "gone") {
    if (session_) session_->events_of_others->gone(m.text("key"));
    return;
  }
  if (m.verb == "compute") {
    for (size_t i = 0; session_ && i < session_->vgpus.size(); ++i) {
      uint64_t percent;
      if (m.number("vgpu." + std::to_string(i) + ".compute_percent", &percent))
        session_->vgpus[i]->compute_percent = static_cast<uint32_t>(percent);
    }
    return answer();
  }
}

// The threads that take commands learn of an end when they come to it, which may be behind commands
// that wait for the GPU without end.
void WorkerProcess::watch_connection(pollfd* polled) {
  if (!executor_) return;
  const bool closed = polled->revents || (closed_at_ == 0 && session_->endpoint().closed());
  if (closed && closed_at_ == 0) closed_at_ = channel::now_ns();
  if (closed_at_ && channel::now_ns() - closed_at_ >= kLastWorkMs * 1'000'000ull)
    executor_->end({wire::EndCause::kClientEnded, "the client closed its session"},
                   CUDA_ERROR_DEINITIALIZED);
}

int WorkerProcess::how_long() const {
  if (!session_) return -1;
  if (closed_at_) return kLastWorkMs / 4;
  return session_->endpoint().resumable() ? kLookOftenMs : kLookMs;
}

int WorkerProcess::run() {
  std::string error;
  // Connections that come while the driver loads wait in the listener's queue.
  if (!prepare(&error)) {
    process::log_error(error);
    pollfd p{control_.listener(), POLLIN, 0};
    if (poll(&p, 1, 1000) > 0) {
      control_.accept();
      std::map<std::string, std::string> v;
      process::End{wire::EndCause::kWorkerFailed, error}.write(v);
      control_.send("ended", v);
    }
    return 1;
  }
  if (!options_.waits && !confine(options_.uid, options_.gid, &error)) {
    process::log_error(error);
    return 1;
  }
  for (;;) {
    // Once it hangs up a connection says so for ever.
    const int client = session_ && closed_at_ == 0 ? session_->endpoint().connection() : -1;
    pollfd p[4] = {{control_.listener(), POLLIN, 0},
                   {control_.connection(), POLLIN, 0},
                   {client_pidfd_, POLLIN, 0},
                   {client, POLLRDHUP, 0}};
    if (poll(p, 4, how_long()) < 0) {
      if (errno == EINTR) continue;
      process::log_error(std::string("poll: ") + std::strerror(errno));
      return 1;
    }
    if (p[0].revents) {
      control_.accept();
      if (!session_)
        announce();
      else
        meet_again();
    }
    if (p[1].revents) {
      process::Message m;
      if (control_.receive(&m)) handle(m);
    }
    process::log_settle();
    watch_connection(&p[3]);
    if (client_pidfd_ >= 0 && p[2].revents && executor_)
      executor_->end({wire::EndCause::kClientEnded, "the client process ended"},
                     CUDA_ERROR_DEINITIALIZED);
    if (executor_ && session_->endpoint().lost())
      executor_->end(lost(session_->endpoint()), CUDA_ERROR_DEINITIALIZED);
  }
}

}  // namespace sluice::worker
