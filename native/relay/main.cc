// SPDX-License-Identifier: Apache-2.0
// sluice-relay: one process for one session whose GPUs are on another host. Started by the server
// beside the client, it connects to the GPU node, presents the session's one-time key and carries
// bytes between the client's slot and that connection until either ends; it outlives the server as
// a worker does and speaks the same control protocol (docs/protocol.md).
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "channel/region.h"
#include "process/control.h"
#include "process/log.h"
#include "process/options.h"
#include "process/sandbox.h"
#include "relay/pump.h"
#include "relay/target.h"
#include "wire/frame.h"

namespace sluice::relay {
namespace {

constexpr int kLookMs = 5'000;  // how often it looks whether the node still answers
constexpr uint32_t kUnheardMs = 60'000;
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
  bool read_session(const process::Message& message, Target* target, std::string* error);
  std::map<std::string, std::string> figures();
  void ended(const process::End& why);

  Options options_;
  process::Control control_;
  std::string session_, grant_, channel_, node_;
  int socket_ = -1, client_pidfd_ = -1;
  std::unique_ptr<Pump> pump_;
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
  v["state"] = pump_ ? "running" : "idle";
  if (!pump_) return v;
  v["id"] = session_;
  v["grant"] = grant_;
  v["channel"] = channel_;
  v["node"] = node_;
  v["bytes_in"] = std::to_string(pump_->bytes_in());
  v["bytes_out"] = std::to_string(pump_->bytes_out());
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

void Relay::start_session(process::Message& m) {
  const int region = m.descriptor("region"), ca = m.descriptor("ca");
  client_pidfd_ = m.descriptor("client_pidfd");
  const auto refuse = [&](const std::string& why, uint32_t status) {
    process::log_error("the session cannot start: " + why);
    control_.send("error", {{"message", why}, {"status", std::to_string(status)}});
    _exit(1);  // the server starts another for the next session
  };
  Target target;
  std::string error;
  if (pump_) return refuse("this relay has a session already", kUnknown);
  if (!read_session(m, &target, &error)) return refuse(error, kUnknown);
  process::log_name(session_, grant_);
  if (ca >= 0) target.ca = read_all(ca, kMostCa);
  Connected connected;
  channel::Opened opened;
  if (!connect_to(target, &connected, &opened))
    return refuse(opened.error, opened.status ? opened.status : kNotReady);
  socket_ = connected.socket;

  // From here on a client is listened to; nothing has to be opened or connected any more.
  if (options_.sandbox && !process::restrict_system_calls(true, false, &error))
    return refuse(error, kUnknown);
  uint64_t slot = 0, slots = 1;
  m.number("slot", &slot);
  m.number("slots", &slots);
  struct stat st {};
  fstat(region, &st);
  const auto region_bytes = static_cast<size_t>(st.st_size);
  const auto count = static_cast<uint32_t>(slots), index = static_cast<uint32_t>(slot);
  const bool blank = channel_ == "shm";
  channel::MappedSlot mapped;
  if (index >= count || (blank && !channel::format_region(region, region_bytes, count, &error)) ||
      !mapped.map(region, channel::slot_bytes_of(region_bytes, count), index,
                  channel::kArenaAnywhere, &error))
    return refuse(error.empty() ? "there is no such slot" : error, kUnknown);
  ::close(region);
  if (ca >= 0) ::close(ca);
  if (blank)
    channel::format_slot(mapped, index, channel::SlotState::kOpening);
  else
    channel::start_slot(mapped);
  auto pump =
      std::make_unique<Pump>(std::move(mapped), std::move(connected.stream), socket_,
                             target.describe(), [this](const process::End& why) { ended(why); });
  if (!pump->open(opened.reply, &error)) return refuse(error, kUnknown);
  pump_ = std::move(pump);
  process::log_info("session started over " + channel_ + ", relayed to " + target.describe() +
                    (target.tls ? " under TLS" : ""));
  control_.send("started", {{"id", session_}});
  if (!pump_->start())
    pump_->end({wire::EndCause::kWorkerFailed,
                "the relay can start no thread: the limit of threads (session_pids) is reached"},
               kOutOfMemory);
}

void Relay::handle(process::Message& m) {
  if (m.verb == "session") return start_session(m);
  for (int fd : m.descriptors) ::close(fd);
  if (m.verb == "status") {
    control_.send("status", figures());
  } else if (m.verb == "end") {
    if (!pump_) _exit(0);
    pump_->end(process::End::ordered(m), kNotReady);
    // It came back: another thread ends the session already, has its last words to say, and exits.
    for (;;) poll(nullptr, 0, -1);
  }
}

int Relay::run() {
  std::string error;
  process::join_cgroup(options_.cgroup);
  if (!process::drop_privileges(options_.uid, options_.gid, &error) ||
      (options_.sandbox && !process::restrict_system_calls(false, false, &error))) {
    process::log_error(error);
    return 1;
  }
  for (;;) {
    pollfd p[3] = {{control_.listener(), POLLIN, 0},
                   {control_.connection(), POLLIN, 0},
                   {client_pidfd_, POLLIN, 0}};
    if (poll(p, 3, pump_ ? kLookMs : -1) < 0) {
      if (errno == EINTR) continue;
      process::log_error(std::string("poll: ") + std::strerror(errno));
      return 1;
    }
    process::log_settle();
    if (p[0].revents) {
      control_.accept();
      if (!pump_) control_.send("ready", {{"devices", "0"}});
    }
    if (p[1].revents) {
      process::Message m;
      if (control_.receive(&m)) handle(m);
    }
    if (pump_ && client_pidfd_ >= 0 && p[2].revents)
      pump_->end({wire::EndCause::kClientEnded, "the client process ended"}, kDeinitialized);
    if (pump_ && channel::unheard_of(socket_, kUnheardMs))
      pump_->end({wire::EndCause::kNodeLost,
                  "node " + node_ + " has not answered for a minute: the connection is given up"},
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
               "[--cgroup PATH] [--sandbox on|off]\nStarted by sluice-server; docs/protocol.md "
               "says how.\n",
               error.c_str());
  return 2;
}
