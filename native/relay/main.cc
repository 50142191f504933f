// SPDX-License-Identifier: Apache-2.0
// sluice-relay: one process for one connection of a session whose GPUs are on another host. Started
// by the server beside the client, it connects to the GPU node, presents the session's one-time key
// and carries bytes between the client's slot, or its connection by vsock, and that connection
// until either ends; it outlives the server as a worker does and speaks the same control protocol
// (docs/protocol.md). Where the session outlives its connections, one that has lost its own says
// so, leaves the slot alone and stays until the server has started the next, which proves that it
// knows the session's key. A client by vsock comes back by a connection of its own, and gets
// another relay.
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "channel/futex.h"
#include "channel/region.h"
#include "channel/thread.h"
#include "process/control.h"
#include "process/log.h"
#include "process/options.h"
#include "process/sandbox.h"
#include "relay/pump.h"
#include "relay/stream_pump.h"
#include "relay/target.h"
#include "wire/frame.h"

namespace sluice::relay {
namespace {

constexpr int kLookMs = 5'000;  // how often it looks whether the node still answers
constexpr int64_t kSecond = 1'000'000'000;
constexpr uint64_t kFirstPauseNs = 50'000'000, kLongestPauseNs = 1'600'000'000;
constexpr size_t kMostCa = 1 << 20;
constexpr uint32_t kOutOfMemory = 2, kNotReady = 802, kDeinitialized = 4,
                   kUnknown = 999;  // CUresult

using Options = process::SessionProcess;

class Relay {
 public:
  explicit Relay(Options options)
      : options_(std::move(options)), control_(options_.control, wire::kRelayReceived) {}
  int run();

 private:
  void handle(process::Message& message);
  void start_session(process::Message& message);
  bool begin_stream(const process::Message& message, int client, Target target, uint32_t* status,
                    std::string* error);
  void open_rdma(Target* target);
  bool read_resuming(const process::Message& message, Resuming* session, uint32_t* epoch);
  void follow_up(const Target& target, process::Message& message);
  void dial(Target target, const Resuming& session, uint32_t epoch, int64_t until);
  bool map_slot(const process::Message& message, channel::MappedSlot* slot, std::string* error);
  std::unique_ptr<Pump> make_pump(channel::MappedSlot slot);
  void begin();
  void lost();
  [[noreturn]] void lost_stream(bool by_client);
  bool read_session(const process::Message& message, Target* target, std::string* error);
  std::map<std::string, std::string> figures();
  void ended(const process::End& why);

  Options options_;
  process::Control control_;
  std::string session_, grant_, channel_, node_;
  int region_ = -1, client_pidfd_ = -1;
  std::unique_ptr<Carrier> carrier_;
  Pump* pump_ = nullptr;  // the carrier, where the client has a slot
  std::string described_;
  int64_t grace_seconds_ = 0;  // of a session that outlives its connections
  std::atomic<int64_t> lost_at_{0};
};

std::string read_all(int fd, size_t most) {
  std::string text(most, '\0');
  const ssize_t n = pread(fd, text.data(), text.size(), 0);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

bool from_hex(const std::string& text, std::vector<std::byte>* out) {
  if (text.size() % 2 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    return false;
  for (size_t i = 0; i < text.size(); i += 2)
    out->push_back(static_cast<std::byte>(std::strtoul(text.substr(i, 2).c_str(), nullptr, 16)));
  return true;
}

std::map<std::string, std::string> Relay::figures() {
  std::map<std::string, std::string> v;
  v["pid"] = std::to_string(getpid());
  v["state"] = lost_at_ ? "broken" : carrier_ ? "running" : "idle";
  if (!carrier_) return v;
  v["id"] = session_;
  v["grant"] = grant_;
  v["channel"] = channel_;
  v["node"] = node_;
  v["bytes_in"] = std::to_string(carrier_->bytes_in());
  v["bytes_out"] = std::to_string(carrier_->bytes_out());
  return v;
}

// Exits here, from whichever thread learned of the end: the connection goes with the process.
void Relay::ended(const process::End& why) {
  auto v = figures();
  why.write(v);
  process::log_last("session ended: " + why.reason + "; bytes_in=" + v["bytes_in"] +
                    " bytes_out=" + v["bytes_out"]);
  control_.send("ended", v);
  _exit(0);
}

bool Relay::read_session(const process::Message& m, Target* target, std::string* error) {
  session_ = m.text("id");
  grant_ = m.text("grant");
  channel_ = m.text("channel");
  node_ = m.text("node");
  target->node = node_;
  target->address = m.text("address");
  target->port = m.text("port");
  target->tls = m.text("tls") == "1";
  target->tls_name = m.text("tls_name");
  if (!from_hex(m.text("request"), &target->request) ||
      target->request.size() != sizeof(wire::OpenSession))
    *error =
        "the message has no OpenSession of " + std::to_string(sizeof(wire::OpenSession)) + " bytes";
  return error->empty();
}

int64_t grace_of(const channel::Opened& opened) {
  wire::OpenReply reply;
  std::memcpy(&reply, opened.reply.data(), sizeof reply);
  return reply.network_grace_seconds;
}

// For the log, behind where the session goes.
std::string describe_way(const Target& target, const Connected& connected) {
  if (connected.over_rdma) return " over RDMA, by " + connected.way;
  return (target.tls ? " under TLS" : "") +
         (target.rdma || !target.why_no_rdma.empty() ? "; not over RDMA: " + connected.way : "");
}

void Relay::start_session(process::Message& m) {
  region_ = m.descriptor("region");
  const int client = m.descriptor("socket");
  const int ca = m.descriptor("ca");
  client_pidfd_ = m.descriptor("client_pidfd");
  const auto refuse = [&](const std::string& why, uint32_t status) {
    process::log_error("the session cannot start: " + why);
    control_.send("error", {{"message", why}, {"status", std::to_string(status)}});
    _exit(1);  // the server starts another for the next session
  };
  Target target;
  std::string error;
  if (carrier_) return refuse("this relay has a session already", kUnknown);
  if (!read_session(m, &target, &error)) return refuse(error, kUnknown);
  process::log_name(session_, grant_);
  if (ca >= 0) {
    target.ca = read_all(ca, kMostCa);
    ::close(ca);
  }
  described_ = target.describe();
  open_rdma(&target);
  if (client >= 0) {
    uint32_t status = kUnknown;
    if (!begin_stream(m, client, std::move(target), &status, &error)) return refuse(error, status);
    return begin();
  }
  channel::MappedSlot mapped;
  if (!m.text("resume_key").empty()) {
    if (!map_slot(m, &mapped, &error)) return refuse(error, kUnknown);
    carrier_ = make_pump(std::move(mapped));
    return follow_up(target, m);
  }
  Connected connected;
  channel::Opened opened;
  if (!open_at(target, &connected, &opened))
    return refuse(opened.error, opened.status ? opened.status : kNotReady);
  // From here on a client is listened to; nothing has to be opened or connected any more.
  target.rdma.reset();
  if (options_.sandbox && !process::restrict_system_calls(true, connected.over_rdma, &error))
    return refuse(error, kUnknown);
  if (!map_slot(m, &mapped, &error)) return refuse(error, kUnknown);
  auto pump = make_pump(std::move(mapped));
  const std::string way = describe_way(target, connected);
  pump->carry(std::move(connected.stream), connected.socket);
  grace_seconds_ = grace_of(opened);
  if (grace_seconds_ > 0) pump_->outlive(channel::kFirstLink, [this] { lost(); });
  if (!pump_->open(opened.reply, &error)) return refuse(error, kUnknown);
  carrier_ = std::move(pump);
  process::log_info("session started over " + channel_ + ", relayed to " + described_ + way);
  begin();
}

// The client's connection is before the reply to its OpenSession, or behind its proof that the
// session is its own. False: `error` says why not, and `status` is kNotReady where it never will
// be.
bool Relay::begin_stream(const process::Message& m, int client, Target target, uint32_t* status,
                         std::string* error) {
  const bool goes_on = !m.text("resume_key").empty();
  auto pump = std::make_unique<StreamPump>(client, described_,
                                           [this](const process::End& why) { ended(why); });
  Connected connected;
  channel::Opened opened;
  if (goes_on) {
    Resuming session;
    uint32_t epoch = 1;
    channel::Resumed done = channel::Resumed::kNotNow;
    *error = "the server's resume_key is none";
    if (!read_resuming(m, &session, &epoch)) return false;
    if (target.rdma) done = resume_at(target, session, epoch, true, &connected, error);
    if (done == channel::Resumed::kNotNow)
      done = resume_at(target, session, target.rdma ? epoch + 1 : epoch, false, &connected, error);
    *status = done == channel::Resumed::kNever ? kNotReady : 0;
    if (done != channel::Resumed::kYes) return false;
  } else {
    if (!open_at(target, &connected, &opened)) {
      *error = opened.error;
      *status = opened.status ? opened.status : kNotReady;
      return false;
    }
    grace_seconds_ = grace_of(opened);
  }
  *status = kUnknown;
  const std::string way = describe_way(target, connected);
  target.rdma.reset();
  if (options_.sandbox && !process::restrict_system_calls(true, connected.over_rdma, error))
    return false;
  pump->carry(std::move(connected.stream), connected.socket);
  if (grace_seconds_ > 0) pump->outlive([this](bool by_client) { lost_stream(by_client); });
  *error = "the client went away while its session was being opened";
  if (!goes_on && !pump->open(opened.reply)) return false;
  carrier_ = std::move(pump);
  process::log_info(std::string(goes_on ? "session goes on" : "session started") + " over " +
                    channel_ + ", relayed to " + described_ + way);
  return true;
}

// Where it fails the session goes over TCP.
void Relay::open_rdma(Target* target) {
  if (options_.rdma.empty()) return;
  channel::RdmaChoice choice;
  if (channel::read_rdma_choice(options_.rdma, &choice))
    target->rdma = channel::RdmaDevice::open(choice, &target->why_no_rdma);
  else
    target->why_no_rdma = "--rdma " + options_.rdma + " is no NAME[:PORT[:GID]]";
}

std::unique_ptr<Pump> Relay::make_pump(channel::MappedSlot slot) {
  auto pump = std::make_unique<Pump>(std::move(slot), described_,
                                     [this](const process::End& why) { ended(why); });
  pump_ = pump.get();
  return pump;
}

// The slot of a session that goes on is as its client has it.
bool Relay::map_slot(const process::Message& m, channel::MappedSlot* slot, std::string* error) {
  uint64_t index = 0, slots = 1;
  m.number("slot", &index);
  m.number("slots", &slots);
  struct stat st {};
  fstat(region_, &st);
  const auto bytes = static_cast<size_t>(st.st_size);
  const auto count = static_cast<uint32_t>(slots), at = static_cast<uint32_t>(index);
  const bool goes_on = !m.text("resume_key").empty(), blank = channel_ == "shm" && !goes_on;
  if (at >= count || (blank && !channel::format_region(region_, bytes, count, error)) ||
      !slot->map(region_, channel::slot_bytes_of(bytes, count), at, channel::kArenaAnywhere,
                 error)) {
    if (error->empty()) *error = "there is no such slot";
    return false;
  }
  if (blank)
    channel::format_slot(*slot, at, channel::SlotState::kOpening);
  else if (!goes_on)
    channel::start_slot(*slot);
  return true;
}

void Relay::begin() {
  control_.send("started",
                {{"id", session_}, {"network_grace_seconds", std::to_string(grace_seconds_)}});
  if (!carrier_->start())
    carrier_->end({wire::EndCause::kWorkerFailed,
                   "the relay can start no thread: the limit of threads (session_pids) is reached"},
                  kOutOfMemory);
}

bool Relay::read_resuming(const process::Message& m, Resuming* session, uint32_t* epoch) {
  std::vector<std::byte> key;
  uint64_t number = 1, seconds = 0;
  m.number("epoch", &number);
  m.number("seconds", &seconds);
  *epoch = static_cast<uint32_t>(number);
  grace_seconds_ = static_cast<int64_t>(seconds);
  session->session_id = std::strtoull(session_.c_str(), nullptr, 16);
  if (!from_hex(m.text("resume_key"), &key) || key.size() != session->key.size()) return false;
  std::memcpy(session->key.data(), key.data(), key.size());
  return true;
}

// The client has its slot already: another connection for it is tried for as long as it may be.
void Relay::follow_up(const Target& target, process::Message& m) {
  Resuming session;
  uint32_t epoch = 1;
  const bool good = read_resuming(m, &session, &epoch);
  const auto until = static_cast<int64_t>(channel::now_ns()) + grace_seconds_ * kSecond;
  const bool started =
      good && channel::start_detached("dial", [=, this] { dial(target, session, epoch, until); });
  if (!started)
    pump_->end({wire::EndCause::kWorkerFailed,
                good ? "the relay can start no thread: the limit of threads is reached"
                     : "the server's resume_key is none"},
               kUnknown);
}

void Relay::dial(Target target, const Resuming& session, uint32_t epoch, int64_t until) {
  Connected connected;
  std::string error;
  if (target.rdma &&
      resume_at(target, session, epoch++, true, &connected, &error) != channel::Resumed::kYes)
    process::log_info("the session goes on over TCP: " +
                      (connected.way.empty() ? error : connected.way));
  for (uint64_t pause = kFirstPauseNs; !connected.over_rdma;
       pause = std::min(pause * 2, kLongestPauseNs), ++epoch) {
    const channel::Resumed done = resume_at(target, session, epoch, false, &connected, &error);
    if (done == channel::Resumed::kYes) break;
    if (done == channel::Resumed::kNever || static_cast<int64_t>(channel::now_ns()) >= until) {
      process::log_error("the session does not go on: " + error);
      return pump_->end(
          {wire::EndCause::kNodeLost,
           "the connection to " + described_ + " broke, and none followed in time: " + error},
          kUnknown);
    }
    channel::sleep_ns(pause);
  }
  target.rdma.reset();
  if (options_.sandbox && !process::restrict_system_calls(true, connected.over_rdma, &error))
    return pump_->end({wire::EndCause::kWorkerFailed, error}, kUnknown);
  pump_->carry(std::move(connected.stream), connected.socket);
  pump_->outlive(epoch + channel::kFirstLink, [this] { lost(); });
  if (!pump_->take_up())
    return pump_->end({wire::EndCause::kClientEnded, "the client closed its session"}, 0);
  process::log_info("the session goes on over another connection to " + described_ +
                    (connected.over_rdma ? ", over RDMA by " + connected.way : ""));
  begin();
}

void Relay::lost() {
  process::log_info("the connection to " + described_ + " is lost; another may follow");
  lost_at_ = static_cast<int64_t>(channel::now_ns());
  control_.send("broken", {{"id", session_}});
}

// Exits here, as ended() does: what follows is for another relay.
void Relay::lost_stream(bool by_client) {
  process::log_last(by_client ? "the client's connection is over; another may follow"
                              : "the connection to " + described_ + " is lost; another may follow");
  control_.send("broken", {{"id", session_}, {"by", by_client ? "client" : "node"}});
  _exit(0);
}

void Relay::handle(process::Message& m) {
  if (m.verb == "session") return start_session(m);
  for (int fd : m.descriptors) ::close(fd);
  if (m.verb == "status") {
    control_.send("status", figures());
  } else if (m.verb == "replaced") {
    _exit(0);
  } else if (m.verb == "end") {
    if (!carrier_) _exit(0);
    carrier_->end(process::End::ordered(m), kNotReady);
    // It came back: another thread ends the session already, has its last words to say, and exits.
    for (;;) poll(nullptr, 0, -1);
  }
}

int Relay::run() {
  std::string error;
  process::join_cgroup(options_.cgroup);
  if (!options_.rdma.empty()) process::allow_locked_memory();
  if (!process::drop_privileges(options_.uid, options_.gid, &error) ||
      (options_.sandbox && !process::restrict_system_calls(false, false, &error))) {
    process::log_error(error);
    return 1;
  }
  for (;;) {
    pollfd p[3] = {{control_.listener(), POLLIN, 0},
                   {control_.connection(), POLLIN, 0},
                   {client_pidfd_, POLLIN, 0}};
    if (poll(p, 3, carrier_ ? kLookMs : -1) < 0) {
      if (errno == EINTR) continue;
      process::log_error(std::string("poll: ") + std::strerror(errno));
      return 1;
    }
    process::log_settle();
    if (p[0].revents) {
      control_.accept();
      if (!carrier_)
        control_.send("ready", {{"devices", "0"}});
      else if (pump_ && grace_seconds_ > 0)
        control_.send("region", {}, region_);
    }
    if (p[1].revents) {
      process::Message m;
      if (control_.receive(&m)) handle(m);
    }
    if (!carrier_) continue;
    if (client_pidfd_ >= 0 && p[2].revents)
      carrier_->end({wire::EndCause::kClientEnded, "the client process ended"}, kDeinitialized);
    carrier_->look();
    const int64_t lost = lost_at_, now = static_cast<int64_t>(channel::now_ns());
    if (lost != 0 && now - lost > grace_seconds_ * kSecond)
      carrier_->end({wire::EndCause::kNodeLost,
                     "the connection to " + described_ + " broke, and none followed in time"},
                    kUnknown);
  }
}

bool read_options(int argc, char** argv, Options* o, std::string* error) {
  if (!process::read_options({argv + 1, static_cast<size_t>(argc - 1)}, process::options_of(o),
                             error))
    return false;
  if (o->control < 0) *error = "--control is needed";
  return o->control >= 0;
}

}  // namespace
}  // namespace sluice::relay

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  sluice::process::log_as("relay");
  sluice::relay::Options options;
  std::string error;
  if (sluice::relay::read_options(argc, argv, &options, &error))
    return sluice::relay::Relay(std::move(options)).run();
  std::fprintf(stderr,
               "sluice-relay: %s\nusage: sluice-relay --id ID --control FD [--uid N --gid N] "
               "[--cgroup PATH] [--sandbox on|off] [--rdma NAME[:PORT[:GID]]]\nStarted by "
               "sluice-server; docs/protocol.md "
               "says how.\n",
               error.c_str());
  return 2;
}
