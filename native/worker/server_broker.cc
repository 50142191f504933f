// SPDX-License-Identifier: Apache-2.0
#include "worker/server_broker.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>

namespace sluice::worker {

namespace {

std::map<std::string, std::string> describe(const wire::ShareKey& key, const SharedThing& thing) {
  return {{"key", key_text(key)},
          {"kind", thing.kind},
          {"gpu", thing.gpu},
          {"bytes", std::to_string(thing.bytes)}};
}

}  // namespace

bool ServerBroker::ask(const char* verb, std::map<std::string, std::string> fields, int fd,
                       Answer* answer, std::string* why) {
  std::unique_lock lock(mutex_);
  const uint64_t request = ++requests_;
  fields["request"] = std::to_string(request);
  waiting_[request] = answer;
  // The main thread may answer as soon as this is sent; it waits for the lock.
  const bool sent = control_.send(verb, fields, fd);
  if (sent)
    answered_.wait_for(lock, std::chrono::seconds(kPatienceSeconds), [&] { return answer->here; });
  waiting_.erase(request);
  if (!answer->here) {
    *why = sent ? "sluice-server does not answer" : "sluice-server is not there";
    return false;
  }
  if (answer->message.verb != "refused") return true;
  *why = answer->message.text("message");
  return false;
}

bool ServerBroker::share(const wire::ShareKey& key, const SharedThing& thing, std::string* why) {
  SharedThing kept = thing;
  kept.fd = fcntl(thing.fd, F_DUPFD_CLOEXEC, 0);
  if (kept.fd < 0) {
    *why = "no descriptor is left";
    return false;
  }
  Answer answer;
  if (!ask("share", describe(key, thing), thing.fd, &answer, why)) {
    ::close(kept.fd);
    return false;
  }
  std::lock_guard lock(mutex_);
  offered_.emplace(key, kept);
  return true;
}

void ServerBroker::unshare(const wire::ShareKey& key) {
  {
    std::lock_guard lock(mutex_);
    const auto it = offered_.find(key);
    if (it != offered_.end()) {
      ::close(it->second.fd);
      offered_.erase(it);
    }
  }
  control_.send("unshare", {{"key", key_text(key)}});
}

bool ServerBroker::fetch(const wire::ShareKey& key, const std::string& kind, SharedThing* thing,
                         std::string* why) {
  Answer answer;
  if (!ask("fetch", {{"key", key_text(key)}, {"kind", kind}}, -1, &answer, why)) return false;
  process::Message& m = answer.message;
  const bool whole = m.descriptors.size() == 1 && m.number("bytes", &thing->bytes);
  if (!whole) {
    for (int fd : m.descriptors) ::close(fd);
    *why = "sluice-server answered with no descriptor";
    return false;
  }
  thing->kind = kind;
  thing->gpu = m.text("gpu");
  thing->fd = m.descriptors[0];
  return true;
}

bool ServerBroker::take(process::Message& m) {
  if (m.verb != "shared" && m.verb != "fetched" && m.verb != "refused") return false;
  uint64_t request = 0;
  m.number("request", &request);
  std::lock_guard lock(mutex_);
  const auto it = waiting_.find(request);
  if (it == waiting_.end()) {  // whoever asked has given up
    for (int fd : m.descriptors) ::close(fd);
    return true;
  }
  it->second->message = std::move(m);
  it->second->here = true;
  answered_.notify_all();
  return true;
}

void ServerBroker::offer_again() {
  std::lock_guard lock(mutex_);
  for (const auto& [key, thing] : offered_) {
    auto fields = describe(key, thing);
    fields["request"] = "0";
    control_.send("share", fields, thing.fd);
  }
}

}  // namespace sluice::worker
