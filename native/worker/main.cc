// SPDX-License-Identifier: Apache-2.0
// sluice-worker: one process for one session. Loads the driver and makes contexts at once, so that
// a session finds it warm; then waits for the server's word, serves the session, and exits when it
// ends. docs/protocol.md describes the words.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "channel/futex.h"
#include "tls/record_stream.h"
#include "wire/address_windows.h"
#include "wire/control.h"
#include "worker/device_output.h"
#include "worker/executor.h"
#include "worker/library/charge.h"
#include "worker/library/library.h"
#include "worker/log.h"
#include "worker/sandbox.h"
#include "worker/server_broker.h"
#include "worker/shared_event.h"

namespace sluice::worker {
namespace {

constexpr int kLookMs = 10'000;  // how often it looks whether a client's machine still answers
// How long after the client's last byte what came before may take: it has gone, as its work will.
constexpr int kLastWorkMs = 2'000;
// How long the last words of a process may take. What keeps them from being said keeps nothing
// else.
constexpr unsigned kLastWordsSeconds = 5;

struct Options {
  std::string id;
  int control = -1;
  std::string driver;
  std::vector<std::string> libraries;  // folders of NVIDIA's libraries
  std::string visible;
  std::string cgroup;
  uint32_t uid = 0, gid = 0;
  bool waits = false;  // for its session, which says whom it becomes
  bool sandbox = true;
  bool meter = true;  // what libraries take is charged to the session
};

class Worker {
 public:
  explicit Worker(Options options)
      : options_(std::move(options)), control_(options_.control, wire::kWorkerReceived) {}

  int run();

 private:
  bool prepare(std::string* error);
  bool confine(uint32_t uid, uint32_t gid, std::string* error);
  bool become(const wire::Message& message, std::string* error);
  void announce();
  void handle(wire::Message& message);
  void start_session(wire::Message& message);
  void meet_again();
  std::map<std::string, std::string> figures();
  void watch_connection(pollfd* polled);
  void ended(const wire::End& why);

  Options options_;
  wire::Control control_;
  ServerBroker broker_{control_};
  std::unique_ptr<Driver> driver_;
  std::vector<Gpu> gpus_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Executor> executor_;
  int client_pidfd_ = -1;
  bool ready_ = false;
  uint64_t closed_at_ = 0;  // when the client was seen to send nothing more
};

// The stream of a connection on which the server has shaken hands.
std::unique_ptr<channel::Stream> secure_stream(int socket, const wire::Message& m,
                                               std::string* error) {
  tls::Session session;
  const std::string suite = m.text("tls");
  session.suite = suite == "TLS_AES_128_GCM_SHA256" ? tls::Suite::kAes128 : tls::Suite::kAes256;
  if ((session.suite == tls::Suite::kAes256 && suite != "TLS_AES_256_GCM_SHA384") ||
      !tls::parse_secret(m.text("tls_in"), session.suite, &session.in) ||
      !tls::parse_secret(m.text("tls_out"), session.suite, &session.out) ||
      !m.number("tls_in_sequence", &session.in.sequence) ||
      !m.number("tls_out_sequence", &session.out.sequence)) {
    *error = "the connection's TLS came without its cipher, secrets or record numbers";
    return nullptr;
  }
  return tls::open_stream(socket, session, error);
}

bool Worker::prepare(std::string* error) {
  if (!options_.cgroup.empty()) {
    FILE* f = std::fopen((options_.cgroup + "/cgroup.procs").c_str(), "w");
    if (!f || std::fprintf(f, "%d", getpid()) < 0 || std::fclose(f) != 0)
      log_error("joining the cgroup " + options_.cgroup + ": " + std::strerror(errno));
  }
  Libraries::set_path(options_.libraries);
  if (!DeviceOutput::instance().redirect(error)) return false;
  if (!options_.visible.empty()) setenv("CUDA_VISIBLE_DEVICES", options_.visible.c_str(), 1);
  // Modules are loaded whole when they are asked for: what is charged is what was loaded.
  const bool meter = options_.meter && options_.driver.find('/') != std::string::npos;
  if (meter && !load_meter(error)) return false;
  driver_ = Driver::load(options_.driver, error);
  if (!driver_) return false;
  if (meter) bind_meter(*driver_);
  CUresult e = driver_->cuInit(0);
  int count = 0;
  if (e == CUDA_SUCCESS) e = driver_->cuDeviceGetCount(&count);
  if (e != CUDA_SUCCESS || count == 0) {
    *error = options_.driver + ": " +
             (e != CUDA_SUCCESS ? driver_->error_text(e) : std::string("it shows no GPU")) +
             (options_.visible.empty() ? "" : " among " + options_.visible);
    return false;
  }
  for (int i = 0; i < count; ++i) {
    Gpu g;
    char name[128] = "", bus[64] = "";
    size_t bytes = 0;
    e = driver_->cuDeviceGet(&g.ordinal, i);
    if (e == CUDA_SUCCESS) e = driver_->cuDeviceGetUuid_v2(&g.uuid, g.ordinal);
    if (e == CUDA_SUCCESS) e = driver_->cuDeviceGetName(name, sizeof name, g.ordinal);
    if (e == CUDA_SUCCESS) e = driver_->cuDeviceTotalMem_v2(&bytes, g.ordinal);
    if (e == CUDA_SUCCESS) e = driver_->cuDeviceGetPCIBusId(bus, sizeof bus, g.ordinal);
    if (e == CUDA_SUCCESS) e = driver_->cuDevicePrimaryCtxRetain(&g.context, g.ordinal);
    if (e == CUDA_SUCCESS) e = driver_->cuCtxSetCurrent(g.context);
    if (e == CUDA_SUCCESS) e = driver_->cuStreamCreate(&g.house, CU_STREAM_NON_BLOCKING);
    if (e != CUDA_SUCCESS) {
      *error = "GPU " + std::to_string(i) + ": " + driver_->error_text(e);
      return false;
    }
    g.name = name;
    g.pci_bus_id = bus;
    g.memory_bytes = bytes;
    gpus_.push_back(g);
  }
  return true;
}

bool Worker::confine(uint32_t uid, uint32_t gid, std::string* error) {
  const bool software = gpus_[0].name.find("software GPU") != std::string::npos;
  return drop_privileges(uid, gid, error) &&
         (!options_.sandbox || restrict_system_calls(software, error));
}

// The user of its grant, before anything of the client's is looked at.
bool Worker::become(const wire::Message& m, std::string* error) {
  uint64_t uid = 0, gid = 0;
  if (!m.number("uid", &uid) || !m.number("gid", &gid)) {
    *error = "this worker waits for its user, and the message has no uid or gid";
    return false;
  }
  return confine(static_cast<uint32_t>(uid), static_cast<uint32_t>(gid), error);
}

void Worker::announce() {
  std::map<std::string, std::string> v;
  for (size_t i = 0; i < gpus_.size(); ++i) {
    const std::string key = "device." + std::to_string(i) + ".";
    v[key + "uuid"] = uuid_text(gpus_[i].uuid);
    v[key + "name"] = gpus_[i].name;
    v[key + "memory_mib"] = std::to_string(gpus_[i].memory_bytes >> 20);
  }
  v["devices"] = std::to_string(gpus_.size());
  control_.send("ready", v);
}

std::map<std::string, std::string> Worker::figures() {
  std::map<std::string, std::string> v;
  v["pid"] = std::to_string(getpid());
  v["state"] = session_ ? "running" : "idle";
  if (!session_) return v;
  v["id"] = session_->plan.id;
  v["grant"] = session_->plan.grant;
  v["channel"] = session_->plan.channel;
  v["commands"] = std::to_string(session_->figures.commands.load());
  v["round_trips"] = std::to_string(session_->figures.round_trips.load());
  v["bytes_in"] = std::to_string(session_->bytes_in());
  v["bytes_out"] = std::to_string(session_->bytes_out());
  double busy = 0;
  bool held = false;
  for (size_t i = 0; i < session_->vgpus.size(); ++i) {
    Vgpu& g = *session_->vgpus[i];
    const std::string key = "vgpu." + std::to_string(i) + ".";
    v[key + "device"] = uuid_text(g.gpu->uuid);
    v[key + "memory_mib"] = std::to_string(g.memory_bytes >> 20);
    // Whoever holds it may be waiting for the GPU, and this thread must not: then it is as it was.
    if (std::unique_lock lock(g.mutex, std::try_to_lock); lock) {
      g.shown_used = g.mapped_bytes + g.library_bytes + g.code_bytes;
      g.shown_library = g.library_bytes;
    }
    v[key + "used_mib"] = std::to_string((g.shown_used + (1 << 20) - 1) >> 20);
    v[key + "library_mib"] = std::to_string((g.shown_library + (1 << 20) - 1) >> 20);
    busy += g.gate->gpu_busy_ms();
    held |= g.gate->held();
  }
  v["gpu_busy_ms"] = std::to_string(static_cast<uint64_t>(busy));
  v["held"] = held ? "1" : "0";
  return v;
}

// The process exits here, from whichever thread learned of the end: the driver's objects go with
// it, which is the point.
void Worker::ended(const wire::End& why) {
  signal(SIGALRM, [](int) { _exit(0); });
  alarm(kLastWordsSeconds);
  auto v = figures();
  why.write(v);
  log_last("session ended: " + why.reason + "; commands=" + v["commands"] +
           " round_trips=" + v["round_trips"] + " bytes_in=" + v["bytes_in"] +
           " bytes_out=" + v["bytes_out"] + " gpu_busy_ms=" + v["gpu_busy_ms"]);
  control_.send("ended", v);
  _exit(0);
}

void Worker::start_session(wire::Message& m) {
  const auto refuse = [&](const std::string& why) {
    log_error("the session cannot start: " + why);
    for (int fd : m.descriptors) ::close(fd);
    control_.send("error", {{"message", why}});
  };
  if (session_) return refuse("this worker has a session already");
  std::string error;
  if (options_.waits && !become(m, &error)) {
    refuse(error);
    _exit(1);
  }
  options_.waits = false;
  SessionPlan plan{m.text("id"), m.text("grant"), m.text("channel"), {}};
  m.number("grant_vgpus", &plan.grant_vgpus);
  uint64_t vgpus = 0, slot = 0, slots = 1, region_bytes = 0;
  m.number("vgpus", &vgpus);
  for (uint64_t i = 0; i < vgpus; ++i) {
    const std::string key = "vgpu." + std::to_string(i) + ".";
    uint64_t mib = 0, percent = 100;
    m.number(key + "memory_mib", &mib);
    m.number(key + "compute_percent", &percent);
    uint64_t place = i;
    m.number(key + "place", &place);
    plan.vgpus.push_back({m.text(key + "device"), mib, static_cast<uint32_t>(percent),
                          static_cast<uint32_t>(place)});
  }
  log_name(plan.id, plan.grant);
  // descriptors: "region,client_pidfd" names what came, in order
  int region = -1, socket = -1, pidfd = -1, code = -1, shared_code = -1, ledger = -1;
  std::string names = m.text("descriptors");
  for (int fd : m.descriptors) {
    const size_t comma = names.find(',');
    const std::string name = names.substr(0, comma);
    names = comma == std::string::npos ? "" : names.substr(comma + 1);
    (name == "region"        ? region
     : name == "socket"      ? socket
     : name == "code"        ? code
     : name == "shared_code" ? shared_code
     : name == "ledger"      ? ledger
                             : pidfd) = fd;
  }
  std::unique_ptr<Endpoint> endpoint;
  if ((plan.channel == "tcp" || plan.channel == "vsock") && socket >= 0) {
    std::unique_ptr<channel::Stream> stream;
    if (m.text("tls").empty() || (stream = secure_stream(socket, m, &error)))
      endpoint = make_tcp_endpoint(socket, std::move(stream));
  } else if ((plan.channel == "shm" || plan.channel == "ivshmem") && region >= 0) {
    struct stat st {};
    fstat(region, &st);
    region_bytes = static_cast<uint64_t>(st.st_size);
    m.number("slot", &slot);
    m.number("slots", &slots);
    endpoint = make_shm_endpoint(region, region_bytes, static_cast<uint32_t>(slots),
                                 static_cast<uint32_t>(slot), plan.channel == "shm",
                                 wire::kArenaAddress, &error);
    ::close(region);
  } else {
    error = "the channel \"" + plan.channel + "\" came without its descriptor";
  }
  if (!endpoint) {
    m.descriptors = {};
    return refuse(error);
  }
  auto session = std::make_unique<Session>(*driver_, std::move(endpoint), plan);
  if (code >= 0 || shared_code >= 0)
    session->code_cache = std::make_unique<CodeCache>(
        code, shared_code, [this](const char* verb, const std::string& name, int descriptor) {
          control_.send(verb, {{"name", name}}, descriptor);
        });
  uint64_t ledger_slot = GrantLedger::kSlots;
  m.number("ledger_slot", &ledger_slot);
  if (ledger >= 0)
    session->ledger = GrantLedger::open(ledger, static_cast<uint32_t>(ledger_slot), &error);
  if ((ledger >= 0 && !session->ledger) || !session->open(gpus_, &error)) {
    m.descriptors = {};
    refuse(error);
    _exit(1);  // windows may be half reserved: a fresh worker takes the next session
  }
  session->broker = &broker_;
  session_ = std::move(session);
  meter_session(session_.get());
  client_pidfd_ = pidfd;
  executor_ = std::make_unique<Executor>(*session_, [this](const wire::End& why) { ended(why); });
  std::string what;
  for (const auto& v : plan.vgpus)
    what += " " + std::to_string(v.memory_mib) + "MiB/" + std::to_string(v.compute_percent) +
            "% of " + v.device;
  log_info("session started over " + plan.channel + ":" + what);
  control_.send("started", {{"id", plan.id}});
  if (!DeviceOutput::instance().take_errors(&error) || !executor_->start())
    executor_->end(
        {wire::EndCause::kWorkerFailed,
         "the worker can start no thread: the limit of threads (session_pids) is reached"},
        CUDA_ERROR_OUT_OF_MEMORY);
}

// A new server has to be told what the last one knew.
void Worker::meet_again() {
  if (session_->ledger) control_.send("ledger", {}, session_->ledger->descriptor());
  broker_.offer_again();
}

void Worker::handle(wire::Message& m) {
  if (m.verb == "session") return start_session(m);
  if (broker_.take(m)) return;
  for (int fd : m.descriptors) ::close(fd);
  const auto answer = [this] { control_.send("status", figures()); };
  if (m.verb == "status") return answer();
  if (m.verb == "end") {
    if (!executor_) _exit(0);
    executor_->end(wire::End::ordered(m), CUDA_ERROR_SYSTEM_NOT_READY);
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
void Worker::watch_connection(pollfd* polled) {
  if (!executor_) return;
  const bool closed = polled->revents || (closed_at_ == 0 && session_->endpoint().closed());
  if (closed && closed_at_ == 0) closed_at_ = channel::now_ns();
  if (closed_at_ && channel::now_ns() - closed_at_ >= kLastWorkMs * 1'000'000ull)
    executor_->end({wire::EndCause::kClientEnded, "the client closed its session"},
                   CUDA_ERROR_DEINITIALIZED);
}

int Worker::run() {
  std::string error;
  // Connections that come while the driver loads wait in the listener's queue.
  if (!prepare(&error)) {
    log_error(error);
    pollfd p{control_.listener(), POLLIN, 0};
    if (poll(&p, 1, 1000) > 0) {
      control_.accept();
      std::map<std::string, std::string> v;
      wire::End{wire::EndCause::kWorkerFailed, error}.write(v);
      control_.send("ended", v);
    }
    return 1;
  }
  if (!options_.waits && !confine(options_.uid, options_.gid, &error)) {
    log_error(error);
    return 1;
  }
  for (;;) {
    // Once it hangs up a connection says so for ever.
    const int client = session_ && closed_at_ == 0 ? session_->endpoint().connection() : -1;
    pollfd p[4] = {{control_.listener(), POLLIN, 0},
                   {control_.connection(), POLLIN, 0},
                   {client_pidfd_, POLLIN, 0},
                   {client, POLLRDHUP, 0}};
    if (poll(p, 4, !session_ ? -1 : closed_at_ ? kLastWorkMs / 4 : kLookMs) < 0) {
      if (errno == EINTR) continue;
      log_error(std::string("poll: ") + std::strerror(errno));
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
      wire::Message m;
      if (control_.receive(&m)) handle(m);
    }
    log_settle();
    watch_connection(&p[3]);
    if (client_pidfd_ >= 0 && p[2].revents && executor_)
      executor_->end({wire::EndCause::kClientEnded, "the client process ended"},
                     CUDA_ERROR_DEINITIALIZED);
    if (executor_ && session_->endpoint().lost())
      executor_->end(
          {wire::EndCause::kClientLost, "the client's machine has not answered for three minutes"},
          CUDA_ERROR_DEINITIALIZED);
  }
}

// "DIR:DIR…"
std::vector<std::string> split(const std::string& folders) {
  std::vector<std::string> all;
  for (size_t at = 0; at < folders.size();) {
    const size_t end = std::min(folders.find(':', at), folders.size());
    if (end > at) all.push_back(folders.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

bool parse(int argc, char** argv, Options* o) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* value = argv[i + 1];
    if (name == "--id")
      o->id = value;
    else if (name == "--control")
      o->control = std::atoi(value);
    else if (name == "--driver")
      o->driver = value;
    else if (name == "--libraries")
      o->libraries = split(value);
    else if (name == "--visible-devices")
      o->visible = value;
    else if (name == "--cgroup")
      o->cgroup = value;
    else if (name == "--uid")
      o->uid = static_cast<uint32_t>(std::atol(value));
    else if (name == "--gid")
      o->gid = static_cast<uint32_t>(std::atol(value));
    else if (name == "--confine")
      o->waits = std::strcmp(value, "session") == 0;
    else if (name == "--sandbox")
      o->sandbox = std::strcmp(value, "off") != 0;
    else if (name == "--meter")
      o->meter = std::strcmp(value, "off") != 0;
    else {
      std::fprintf(stderr, "sluice-worker: unknown option %s\n", argv[i]);
      return false;
    }
  }
  if (o->control >= 0 && !o->driver.empty() && argc % 2 == 1) return true;
  std::fprintf(stderr,
               "usage: sluice-worker --id ID --control FD --driver PATH [--libraries "
               "DIR:DIR...] [--visible-devices UUID,...] [--uid N --gid N | --confine session] "
               "[--cgroup PATH] [--sandbox on|off] [--meter on|off]\nStarted by sluice-server; "
               "docs/protocol.md "
               "says how.\n");
  return false;
}

}  // namespace
}  // namespace sluice::worker

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  sluice::worker::Options options;
  if (!sluice::worker::parse(argc, argv, &options)) return 2;
  return sluice::worker::Worker(std::move(options)).run();
}
