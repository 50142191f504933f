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
#include "relay/pump.h"
#include "relay/target.h"
#include "wire/control.h"
#include "wire/frame.h"
#include "worker/log.h"
#include "worker/sandbox.h"

namespace sluice::relay {
namespace {

using worker::log_error;
using worker::log_info;

constexpr int kLookMs = 5'000;  // how often it looks whether the node still answers
constexpr uint32_t kUnheardMs = 60'000;
constexpr size_t kMostCa = 1 << 20;
constexpr uint32_t kOutOfMemory = 2, kNotReady = 802, kDeinitialized = 4,
                   kUnknown = 999;  // CUresult

struct Options {
  std::string id;
  int control = -1;
  std::string cgroup;
  uint32_t uid = 0, gid = 0;
  bool sandbox = true;
};

class Relay {
 public:
  explicit Relay(Options options)
      : options_(std::move(options)), control_(options_.control, wire::kRelayReceived) {}
  int run();

 private:
  void handle(wire::Message& message);
  void start_session(wire::Message& message);
  bool read_session(const wire::Message& message, Target* target, std::string* error);
  std::map<std::string, std::string> figures();
  void ended(const wire::End& why);

  Options options_;
  wire::Control control_;
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
void Relay::ended(const wire::End& why) {
  auto v = figures();
  why.write(v);
  worker::log_last("session ended: " + why.reason + "; bytes_in=" + v["bytes_in"] +
                   " bytes_out=" + v["bytes_out"]);
  control_.send("ended", v);
  _exit(0);
}

bool Relay::read_session(const wire::Message& m, Target* target, std::string* error) {
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

void Relay::start_session(wire::Message& m) {
  int region = -1, ca = -1;
  std::string names = m.text("descriptors");
  for (int fd : m.descriptors) {
    const size_t comma = names.find(',');
    const std::string name = names.substr(0, comma);
    names = comma == std::string::npos ? "" : names.substr(comma + 1);
    (name == "region" ? region : name == "ca" ? ca : client_pidfd_) = fd;
  }
  const auto refuse = [&](const std::string& why, uint32_t status) {
    log_error("the session cannot start: " + why);
    control_.send("error", {{"message", why}, {"status", std::to_string(status)}});
    _exit(1);  // the server starts another for the next session
  };
  Target target;
  std::string error;
  if (pump_) return refuse("this relay has a session already", kUnknown);
  if (!read_session(m, &target, &error)) return refuse(error, kUnknown);
  worker::log_name(session_, grant_);
  if (ca >= 0) target.ca = read_all(ca, kMostCa);
  Connected connected;
  channel::Opened opened;
  if (!connect_to(target, &connected, &opened))
    return refuse(opened.error, opened.status ? opened.status : kNotReady);
  socket_ = connected.socket;

  // From here on a client is listened to; nothing has to be opened or connected any more.
  if (options_.sandbox && !worker::restrict_system_calls(true, &error))
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
                             target.describe(), [this](const wire::End& why) { ended(why); });
  if (!pump->open(opened.reply, &error)) return refuse(error, kUnknown);
  pump_ = std::move(pump);
  log_info("session started over " + channel_ + ", relayed to " + target.describe() +
           (target.tls ? " under TLS" : ""));
  control_.send("started", {{"id", session_}});
  if (!pump_->start())
    pump_->end({wire::EndCause::kWorkerFailed,
                "the relay can start no thread: the limit of threads (session_pids) is reached"},
               kOutOfMemory);
}

void Relay::handle(wire::Message& m) {
  if (m.verb == "session") return start_session(m);
  for (int fd : m.descriptors) ::close(fd);
  if (m.verb == "status") {
    control_.send("status", figures());
  } else if (m.verb == "end") {
    if (!pump_) _exit(0);
    pump_->end(wire::End::ordered(m), kNotReady);
    // It came back: another thread ends the session already, has its last words to say, and exits.
    for (;;) poll(nullptr, 0, -1);
  }
}

int Relay::run() {
  std::string error;
  if (!options_.cgroup.empty()) {
    FILE* f = std::fopen((options_.cgroup + "/cgroup.procs").c_str(), "w");
    if (!f || std::fprintf(f, "%d", getpid()) < 0 || std::fclose(f) != 0)
      log_error("joining the cgroup " + options_.cgroup + ": " + std::strerror(errno));
  }
  if (!worker::drop_privileges(options_.uid, options_.gid, &error) ||
      (options_.sandbox && !worker::restrict_system_calls(false, &error))) {
    log_error(error);
    return 1;
  }
  for (;;) {
    pollfd p[3] = {{control_.listener(), POLLIN, 0},
                   {control_.connection(), POLLIN, 0},
                   {client_pidfd_, POLLIN, 0}};
    if (poll(p, 3, pump_ ? kLookMs : -1) < 0) {
      if (errno == EINTR) continue;
      log_error(std::string("poll: ") + std::strerror(errno));
      return 1;
    }
    worker::log_settle();
    if (p[0].revents) {
      control_.accept();
      if (!pump_) control_.send("ready", {{"devices", "0"}});
    }
    if (p[1].revents) {
      wire::Message m;
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

bool parse(int argc, char** argv, Options* o) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* value = argv[i + 1];
    if (name == "--id")
      o->id = value;
    else if (name == "--control")
      o->control = std::atoi(value);
    else if (name == "--cgroup")
      o->cgroup = value;
    else if (name == "--uid")
      o->uid = static_cast<uint32_t>(std::atol(value));
    else if (name == "--gid")
      o->gid = static_cast<uint32_t>(std::atol(value));
    else if (name == "--sandbox")
      o->sandbox = std::strcmp(value, "off") != 0;
    else {
      std::fprintf(stderr, "sluice-relay: unknown option %s\n", argv[i]);
      return false;
    }
  }
  if (o->control >= 0 && argc % 2 == 1) return true;
  std::fprintf(stderr,
               "usage: sluice-relay --id ID --control FD [--uid N --gid N] [--cgroup PATH] "
               "[--sandbox on|off]\nStarted by sluice-server; docs/protocol.md says how.\n");
  return false;
}

}  // namespace
}  // namespace sluice::relay

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  sluice::worker::log_as("relay");
  sluice::relay::Options options;
  if (!sluice::relay::parse(argc, argv, &options)) return 2;
  return sluice::relay::Relay(std::move(options)).run();
}
