// SPDX-License-Identifier: Apache-2.0
// How an end is made and connected, and how its threads wait; what is sent and received is in
// rdma_transfer.cc.
#include "channel/rdma_connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "channel/futex.h"
#include "channel/rdma_objects.h"

namespace sluice::channel {

namespace {

constexpr int kSleepMs = 2000;  // then look whether all is well
// How long a port may be down before another way is looked for: a link that is back sooner is worth
// waiting for, since a session that has left RDMA comes back to it only seconds later.
constexpr uint64_t kPortDownNs = 2'000'000'000;
// A quarter of a second until a packet is sent again, six times: a way that is gone is given up
// within two seconds or, where the adapter takes its time, eight. Not seven: that is "for ever" to
// soft RoCE.
constexpr uint8_t kAckTimeout = 16, kRetries = 6, kForEver = 7;
constexpr uint8_t kNotReadyTimer = 12;  // 0.64 ms
constexpr uint32_t kPacketMask = 0xffffff;
constexpr uint32_t kMostRing = 16 << 20;

std::string failed(const char* what) {
  return std::string("RDMA: ") + what + " failed: " + std::strerror(errno);
}

bool never_waits(int descriptor) {
  const int flags = fcntl(descriptor, F_GETFL);
  return flags >= 0 && fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) == 0;
}

}  // namespace

RdmaConnection::Objects::~Objects() {
  if (queue_pair) verbs.ibv_destroy_qp(queue_pair);
  if (received) {
    verbs.ibv_ack_cq_events(received, received_events);
    verbs.ibv_destroy_cq(received);
  }
  if (sent) {
    verbs.ibv_ack_cq_events(sent, sent_events);
    verbs.ibv_destroy_cq(sent);
  }
  if (channel) verbs.ibv_destroy_comp_channel(channel);
}

RdmaConnection::RdmaConnection(std::shared_ptr<RdmaDevice> device)
    : device_(std::move(device)),
      verbs_(device_->verbs()),
      owner_(getpid()),
      objects_(std::make_unique<Objects>(verbs_)) {}

// A child of fork() that took these apart would do so for its parent.
RdmaConnection::~RdmaConnection() {
  for (int descriptor : {epoll_, nudges_[0], nudges_[1]})
    if (descriptor >= 0) ::close(descriptor);
  ibv_pd* const domain = objects_->domain;
  if (getpid() != owner_) {
    (void)objects_.release();
    (void)memory_.release();
    (void)own_.release();
    return;
  }
  if (own_) own_->end();
  objects_.reset();  // nothing reaches the memory any more
  own_.reset();
  memory_.reset();
  if (domain) verbs_.ibv_dealloc_pd(domain);
}

std::shared_ptr<RdmaConnection> RdmaConnection::make(std::shared_ptr<RdmaDevice> device,
                                                     std::string* error) {
  std::shared_ptr<RdmaConnection> made(new RdmaConnection(std::move(device)));
  return made->build(error) ? made : nullptr;
}

bool RdmaConnection::build(std::string* error) {
  Objects& o = *objects_;
  ibv_context* const context = device_->context();
  o.domain = verbs_.ibv_alloc_pd(context);
  if (!o.domain) return *error = failed("making a protection domain"), false;
  memory_ = RdmaMemory::make(verbs_, o.domain, error);
  if (!memory_) return false;
  own_ = std::make_unique<RdmaRegistrations>(
      verbs_, o.domain,
      RdmaRegistrations::Use{
          [this](uint64_t number, bool insist) { return passed(number, insist); },
          [this] { return placing_.expects(); }});
  o.channel = verbs_.ibv_create_comp_channel(context);
  if (!o.channel) return *error = failed("making an event channel"), false;
  // Room for all that can be posted: a queue that runs over is lost.
  o.received = verbs_.ibv_create_cq(context, kReceives, nullptr, o.channel, 0);
  o.sent = verbs_.ibv_create_cq(context, kSends, nullptr, o.channel, 0);
  if (!o.received || !o.sent) return *error = failed("making completion queues"), false;
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  for (int& nudge : nudges_) nudge = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_ < 0 || nudges_[0] < 0 || nudges_[1] < 0 || !never_waits(o.channel->fd) ||
      !never_waits(context->async_fd))
    return *error = failed("making descriptors"), false;
  for (int descriptor : {o.channel->fd, context->async_fd, nudges_[0]}) {
    epoll_event e{EPOLLIN, {}};
    epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &e);
  }
  if (getrandom(&first_packet_, sizeof first_packet_, 0) != sizeof first_packet_)
    return *error = failed("a random number"), false;
  first_packet_ &= kPacketMask;
  return make_queue_pair(error);
}

bool RdmaConnection::make_queue_pair(std::string* error) {
  Objects& o = *objects_;
  for (uint32_t inline_bytes : {kInline, 0u}) {  // not every device has so much
    ibv_qp_init_attr attributes{};
    attributes.send_cq = o.sent;
    attributes.recv_cq = o.received;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap.max_send_wr = kSends;
    attributes.cap.max_recv_wr = kReceives;
    attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
    attributes.cap.max_inline_data = inline_bytes;
    o.queue_pair = verbs_.ibv_create_qp(o.domain, &attributes);
    inline_ = attributes.cap.max_inline_data;
    if (o.queue_pair) break;
  }
  if (!o.queue_pair) return *error = failed("making a queue pair"), false;
  ibv_qp_attr begins{};
  begins.qp_state = IBV_QPS_INIT;
  begins.port_num = device_->port();
  begins.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;  // not to read, no atomics
  if (verbs_.ibv_modify_qp(o.queue_pair, &begins,
                           IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) !=
      0)
    return *error = failed("preparing a queue pair"), false;
  std::lock_guard lock(receive_mutex_);
  if (!post_receives(kReceives)) return *error = failed("posting receives"), false;
  return true;
}

wire::RdmaTerms RdmaConnection::terms() const {
  wire::RdmaTerms terms{};
  terms.queue_pair = objects_->queue_pair->qp_num;
  terms.first_packet = first_packet_;
  terms.path_mtu = device_->mtu();
  std::memcpy(terms.gid, device_->gid(), sizeof terms.gid);
  terms.area = reinterpret_cast<uintptr_t>(memory_->area());
  terms.area_key = memory_->area_key();
  terms.ring_bytes = static_cast<uint32_t>(memory_->ring_bytes());
  terms.receives = kPieces;
  terms.lid = device_->lid();
  terms.abilities = wire::kPlacesParts;
  return terms;
}

bool RdmaConnection::sound(const wire::RdmaTerms& t) {
  return t.ring_bytes >= RdmaMemory::kLeastRing && t.ring_bytes <= kMostRing &&
         (t.ring_bytes & (t.ring_bytes - 1)) == 0 && t.receives >= 16 && t.receives <= 4096 &&
         t.path_mtu >= IBV_MTU_256 && t.path_mtu <= IBV_MTU_4096 && t.lid <= 0xffff &&
         t.queue_pair <= kPacketMask && t.first_packet <= kPacketMask;
}

bool RdmaConnection::connect(const wire::RdmaTerms& other, std::string* error) {
  if (!sound(other)) {
    *error = "the other side's RDMA parameters make no sense";
    return false;
  }
  other_ = other;
  ibv_qp* const qp = objects_->queue_pair;
  ibv_qp_attr receives{};
  receives.qp_state = IBV_QPS_RTR;
  receives.path_mtu = static_cast<ibv_mtu>(std::min(other.path_mtu, device_->mtu()));
  receives.dest_qp_num = other.queue_pair;
  receives.rq_psn = other.first_packet;
  receives.min_rnr_timer = kNotReadyTimer;
  receives.ah_attr.is_global = 1;
  receives.ah_attr.port_num = device_->port();
  receives.ah_attr.dlid = static_cast<uint16_t>(other.lid);
  std::memcpy(receives.ah_attr.grh.dgid.raw, other.gid, sizeof other.gid);
  receives.ah_attr.grh.sgid_index = device_->gid_index();
  receives.ah_attr.grh.hop_limit = 64;
  if (verbs_.ibv_modify_qp(qp, &receives,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                               IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) !=
      0)
    return *error = failed("finding the way to the other side's GID"), false;
  ibv_qp_attr sends{};
  sends.qp_state = IBV_QPS_RTS;
  sends.timeout = kAckTimeout;
  sends.retry_cnt = kRetries;
  sends.rnr_retry = kForEver;
  sends.sq_psn = first_packet_;
  if (verbs_.ibv_modify_qp(qp, &sends,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) != 0)
    return *error = failed("connecting a queue pair"), false;
  return true;
}

void RdmaConnection::follow(int socket) {
  socket_.store(socket);
  epoll_event e{EPOLLIN | EPOLLRDHUP, {}};
  epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &e);
}

void RdmaConnection::leave() {
  std::lock_guard lock(event_mutex_);
  const int socket = socket_.exchange(-1);
  if (socket >= 0) epoll_ctl(epoll_, EPOLL_CTL_DEL, socket, nullptr);
}

// ---- waiting

void RdmaConnection::fail(const std::string& why) {
  {
    std::lock_guard lock(event_mutex_);
    if (why_.empty()) why_ = why;
  }
  broken_.store(true);
  nudge();
}

// Nothing that was posted is carried out any more.
void RdmaConnection::stop() {
  ibv_qp_attr over{};
  over.qp_state = IBV_QPS_ERR;
  verbs_.ibv_modify_qp(objects_->queue_pair, &over, IBV_QP_STATE);
}

// Of what own_ asks.
bool RdmaConnection::passed(uint64_t number, bool insist) {
  constexpr uint64_t kPatienceNs = 1'000'000'000;
  if (insist && retired_.load() < number) {
    {
      std::lock_guard lock(post_mutex_);  // none of it may have asked for a completion
      if (unsignaled_ > 0) post(Kind::kGreeting, 0, {}, true, false);
    }
    for (const uint64_t until = now_ns() + kPatienceNs;
         !broken_.load() && retired_.load() < number && now_ns() < until;) {
      progress(true);
      if (retired_.load() < number) sleep_ns(50'000);
    }
    if (retired_.load() < number) {
      fail("memory was freed that the RDMA device had not sent yet");
      stop();
    }
  }
  return retired_.load() >= number;
}

std::string RdmaConnection::why() {
  std::lock_guard lock(event_mutex_);
  return why_;
}

bool RdmaConnection::nothing_for(Role role) {
  if (broken_.load() || socket_over_.load()) return false;
  if (role == Role::kWriter) return !can(writer_waits_.load());
  const uint64_t consumed = consumed_.load();
  return there() == 0 && !finished_.load() && !placing_.has_part(consumed) &&
         placing_.offer(consumed) == 0;
}

// Whoever looked at the queues tells those who sleep, for whom it was meant.
void RdmaConnection::nudge() {
  for (Role role : {Role::kReader, Role::kWriter}) {
    const auto r = static_cast<size_t>(role);
    const uint64_t one = 1;
    if (sleeps_[r].load() && !nothing_for(role) &&
        ::write(nudges_[r], &one, sizeof one) != sizeof one)
      continue;
  }
}

// event_mutex_ held.
void RdmaConnection::drain_events() {
  ibv_cq* queue = nullptr;
  void* unused = nullptr;
  while (verbs_.ibv_get_cq_event(objects_->channel, &queue, &unused) == 0)
    ++(queue == objects_->received ? objects_->received_events : objects_->sent_events);
}

void RdmaConnection::hear_device() {
  ibv_async_event event{};
  while (verbs_.ibv_get_async_event(device_->context(), &event) == 0) {
    const ibv_event_type type = event.event_type;
    // The device may have another connection's, which follows this one or was before it.
    const bool of_pair = event.element.qp == objects_->queue_pair;
    const bool of_queue =
        event.element.cq == objects_->received || event.element.cq == objects_->sent;
    const bool fatal = type == IBV_EVENT_DEVICE_FATAL ||
                       (of_pair && (type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
                                    type == IBV_EVENT_QP_ACCESS_ERR)) ||
                       (of_queue && type == IBV_EVENT_CQ_ERR);
    verbs_.ibv_ack_async_event(&event);
    if (type == IBV_EVENT_PORT_ERR) port_down_since_.store(now_ns());
    if (type == IBV_EVENT_PORT_ACTIVE) port_down_since_.store(0);
    if (fatal) fail(std::string("the RDMA device says: ") + verbs_.ibv_event_type_str(type));
  }
  if (errno != EAGAIN && errno != EINTR) fail("the RDMA device is gone");
}

void RdmaConnection::arm_for(Role role) {
  const auto r = static_cast<size_t>(role);
  bool armed;
  {
    // What is drained here may have been meant for the other who sleeps, so it is armed for both.
    std::lock_guard lock(event_mutex_);
    sleeps_[r].store(true);
    uint64_t nudged;
    if (::read(nudges_[r], &nudged, sizeof nudged) < 0) nudged = 0;
    drain_events();
    // A reader is woken when the other side thinks it worth it, a writer by each word of room too,
    // and by what has gone where that is what he lacks.
    const bool writes = sleeps_[static_cast<size_t>(Role::kWriter)].load();
    const bool own_room = writer_waits_.load() == For::kPiece || other_has_room();
    armed = ibv_req_notify_cq(objects_->received, !writes) == 0 &&
            (!writes || !own_room || ibv_req_notify_cq(objects_->sent, 0) == 0);
  }
  if (!armed) fail("the RDMA device is gone");
  progress(true);
}

void RdmaConnection::arm() { arm_for(Role::kReader); }

void RdmaConnection::wait(Role role) {
  arm_for(role);
  if (nothing_for(role)) {
    pollfd fds[4] = {{objects_->channel->fd, POLLIN, 0},
                     {device_->context()->async_fd, POLLIN, 0},
                     {socket_.load(), POLLIN | POLLRDHUP, 0},
                     {nudges_[static_cast<size_t>(role)], POLLIN, 0}};
    const int heard = poll(fds, 4, kSleepMs);
    if (heard == 0 || port_down_since_.load() != 0) judge_port();
    if (heard > 0) {
      if (fds[0].revents & (POLLERR | POLLHUP | POLLNVAL)) fail("the RDMA device is gone");
      if (fds[1].revents) hear_device();
      if (fds[2].revents) socket_over_.store(true);
    }
  }
  sleeps_[static_cast<size_t>(role)].store(false);
}

// Asked as well as told: the word of a port that goes down may not come where its device goes, too.
void RdmaConnection::judge_port() {
  if (device_->is_up())
    port_down_since_.store(0);
  else if (port_down_since_.load() == 0)
    port_down_since_.store(now_ns());
  const uint64_t down = port_down_since_.load();
  if (down != 0 && now_ns() - down >= kPortDownNs) fail("the RDMA device's port is down");
}

bool RdmaConnection::look() {
  hear_device();
  judge_port();
  std::lock_guard lock(event_mutex_);  // it stays open meanwhile
  const int socket = socket_.load();
  if (socket < 0) return true;
  pollfd p{socket, POLLRDHUP, 0};
  if (!broken_.load() && poll(&p, 1, 0) <= 0) return false;
  shutdown(socket, SHUT_RDWR);
  return broken_.load();  // else what came before the end is still to be read
}

bool RdmaConnection::greet() {
  {
    std::lock_guard lock(post_mutex_);
    if (!post(Kind::kGreeting, 0, {}, true, true)) return false;
  }
  return !broken_.load();
}

bool RdmaConnection::await_greeting(int milliseconds) {
  const uint64_t until = now_ns() + static_cast<uint64_t>(milliseconds) * 1'000'000;
  while (!greeted_.load() && !broken_.load() && now_ns() < until) {
    progress(true);
    if (!greeted_.load()) sleep_ns(200'000);
  }
  return greeted_.load();
}

}  // namespace sluice::channel
