// SPDX-License-Identifier: Apache-2.0
// The host's side of graphs. A node runs any number of times and cannot carry a new value each
// time, as marks would need: host functions shake hands by two words (core/graphs.h). Copies of
// memory that the worker does not share are a copy of a block of the arena with a host function
// before or behind it, or, over a network, of a shadow in the worker.
#include <set>

#include "client/core/log.h"
#include "client/driver/graph.h"

namespace sluice::client {

namespace {

std::mutex g_mutex;  // what follows
struct Words {
  std::atomic<uint64_t>*ready, *done;
};
std::vector<Words> g_used;  // given back, until the node's last write has landed
std::vector<Words> g_spare;
struct Limbo {
  void* at;
  Device* device;
};
std::vector<Limbo> g_limbo;  // blocks that a run may still be using
uint64_t g_next_shadow = 1;

constexpr size_t kWordsPage = 4096, kWordsBytes = 64;  // a cache line each

// Blocks go back to the arena once their device has nothing left to do.
void empty_limbo(Session* s) {
  std::erase_if(g_limbo, [&](const Limbo& l) {
    if (!s->idle(*l.device)) return false;
    s->host_memory().release(l.at);
    return true;
  });
}

// A block of the arena for one copy of a graph.
struct Block {
  std::byte* at = nullptr;
  Device* device = nullptr;
  ~Block() {
    std::lock_guard lock(g_mutex);
    if (at) g_limbo.push_back({at, device});
  }
};

std::shared_ptr<Block> make_block(Session* s, Device* device, size_t bytes) {
  {
    std::lock_guard lock(g_mutex);
    empty_limbo(s);
  }
  void* at = nullptr;
  if (!s->host_memory().allocate(bytes, 0, device->index, &at)) return nullptr;
  if (!s->host_memory().in_arena(at, bytes)) {
    s->host_memory().release(at);
    return nullptr;
  }
  auto block = std::make_shared<Block>();
  block->at = static_cast<std::byte*>(at);
  block->device = device;
  return block;
}

void move_rows(std::byte* to, uint64_t to_pitch, const std::byte* from, uint64_t from_pitch,
               Rect r) {
  for (uint64_t row = 0; row < r.rows; ++row)
    std::memmove(to + row * to_pitch, from + row * from_pitch, r.width);
}

// The graph that a capturing stream records into.
Graph* graph_of(Session* s, Stream* stream) {
  CUstreamCaptureStatus status;
  Capture capture;
  if (s->captures.status(stream, &status, &capture) != CUDA_SUCCESS ||
      status == CU_STREAM_CAPTURE_STATUS_NONE)
    return nullptr;
  return s->graphs.find(capture.graph);
}

// Puts a call into the capture.
CUresult add_call(Session* s, Stream* stream, HostCall call) {
  Graph* graph = graph_of(s, stream);
  if (!graph) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (graph->body)  // CUDA takes none there either
    return refuse_in_graph(s, stream,
                           "a host function, or copy of pageable memory, in a condition");
  call.words = make_handshake(s);
  if (!call.words) return refuse_in_graph(s, stream, "a host function without shared memory");
  const std::vector<wire::MemOp> operations = handshake_operations(*call.words);
  const wire::StreamMemOps m{stream->wire_id, static_cast<uint32_t>(operations.size()), 0};
  graph->host.calls.push_back(std::move(call));
  return s->post(wire::kStreamMemOps, m, std::as_bytes(std::span(operations)), stream,
                 context_of(stream->device));
}

wire::CopyToDevice describe(const Stream* stream, uint64_t device, uint64_t pitch, Rect r,
                            wire::HostPlace place, uint64_t host) {
  wire::CopyToDevice c{};
  c.stream = stream->wire_id;
  c.device_address = device;
  c.device_pitch = pitch;
  c.host_address = host;
  c.host_pitch = r.width;
  c.width = r.width;
  c.rows = r.rows;
  c.place = place;
  c.mark = wire::kNoMark;
  return c;
}

CUresult shadow_copy(Session* s, Stream* stream, bool to_device, void* host, uint64_t host_pitch,
                     uint64_t device, uint64_t device_pitch, Rect r) {
  Graph* graph = graph_of(s, stream);
  if (!graph) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  ShadowRef shadow = make_shadow(s, stream->device, to_device, host, host_pitch, r);
  if (!shadow) return refuse_in_graph(s, stream, "a copy of that size over a network");
  const auto c = describe(stream, device, device_pitch, r, wire::HostPlace::kShadow, shadow->id);
  graph->host.shadows.push_back(std::move(shadow));
  return s->post(to_device ? wire::kCopyToDevice : wire::kCopyToHost, c, {}, stream,
                 context_of(stream->device));
}

}  // namespace

// Never freed: the words stay a graph's, and wait for its node's last write.
Handshake::~Handshake() {
  if (!ready) return;
  std::lock_guard lock(g_mutex);
  g_used.push_back({ready, done});
}

ShadowCopy::~ShadowCopy() {
  if (Session* s = id ? Session::get() : nullptr)
    s->post(wire::kShadowMake, wire::ShadowMake{id, 0}, {}, nullptr, context);
}

void note_refused(const char* what) {
  static std::mutex mutex;
  static std::set<std::string> said;
  std::lock_guard lock(mutex);
  if (said.insert(what).second)
    log_line(LogLevel::kError, std::string(what) + " cannot be put into a graph");
}

CUresult refuse_in_graph(Session* s, Stream* stream, const char* what) {
  note_refused(what);
  return s->captures.refuse(stream);
}

std::shared_ptr<Handshake> make_handshake(Session* s) {
  if (!s->marks()) return nullptr;
  std::lock_guard lock(g_mutex);
  // A node that has run took `done` back last.
  std::erase_if(g_used, [](const Words& words) {
    if (words.done->load(std::memory_order_acquire) != 0) return false;
    g_spare.push_back(words);
    return true;
  });
  if (g_spare.empty()) {
    void* page = nullptr;
    if (!s->host_memory().allocate(kWordsPage, 0, 0, &page)) return nullptr;
    if (!s->host_memory().in_arena(page, kWordsPage)) {
      s->host_memory().release(page);
      return nullptr;
    }
    for (size_t at = 0; at < kWordsPage; at += kWordsBytes) {
      auto* words = reinterpret_cast<std::atomic<uint64_t>*>(static_cast<std::byte*>(page) + at);
      words[0].store(0);
      words[1].store(0);
      g_spare.push_back({words, words + 1});
    }
  }
  auto made = std::make_shared<Handshake>();
  made->ready = g_spare.back().ready;
  made->done = g_spare.back().done;
  g_spare.pop_back();
  made->ready->store(0);
  return made;
}

std::vector<wire::MemOp> handshake_operations(const Handshake& words) {
  const auto ready = reinterpret_cast<uint64_t>(words.ready);
  const auto done = reinterpret_cast<uint64_t>(words.done);
  return {{CU_STREAM_MEM_OP_WRITE_VALUE_64, 0, ready, 1},
          {CU_STREAM_MEM_OP_WAIT_VALUE_64, CU_STREAM_WAIT_VALUE_GEQ, done, 1},
          {CU_STREAM_MEM_OP_WRITE_VALUE_64, 0, done, 0}};
}

ShadowRef make_shadow(Session* s, const Device* device, bool to_device, void* host, uint64_t pitch,
                      Rect r) {
  if (r.width * r.rows > wire::kMaxShadowBytes / 4) return nullptr;
  auto shadow = std::make_shared<ShadowCopy>();
  {
    std::lock_guard lock(g_mutex);
    shadow->id = g_next_shadow++;
  }
  shadow->to_device = to_device;
  shadow->host = static_cast<std::byte*>(host);
  shadow->pitch = pitch;
  shadow->width = r.width;
  shadow->rows = r.rows;
  shadow->context = context_of(device);
  s->post(wire::kShadowMake, wire::ShadowMake{shadow->id, r.width * r.rows}, {}, nullptr,
          shadow->context);
  return shadow;
}

CUresult capture_host_function(Session* s, Stream* stream, CUhostFn function, void* data) {
  return add_call(s, stream, {nullptr, function, data, [=] { function(data); }});
}

CUresult capture_copy_to_device(Session* s, Stream* stream, uint64_t to, uint64_t to_pitch,
                                const void* from, uint64_t from_pitch, Rect r) {
  if (!s->marks())
    return shadow_copy(s, stream, true, const_cast<void*>(from), from_pitch, to, to_pitch, r);
  const auto block = make_block(s, stream->device, r.width * r.rows);
  if (!block) return refuse_in_graph(s, stream, "a pageable copy larger than the arena's rest");
  const auto* source = static_cast<const std::byte*>(from);
  const CUresult e = add_call(s, stream, {nullptr, nullptr, nullptr, [=] {
                                            move_rows(block->at, r.width, source, from_pitch, r);
                                          }});
  if (e != CUDA_SUCCESS) return e;
  const auto c = describe(stream, to, to_pitch, r, wire::HostPlace::kArena,
                          reinterpret_cast<uint64_t>(block->at));
  return s->post(wire::kCopyToDevice, c, {}, stream, context_of(stream->device));
}

CUresult capture_copy_to_host(Session* s, Stream* stream, void* to, uint64_t to_pitch,
                              uint64_t from, uint64_t from_pitch, Rect r) {
  if (!s->marks()) return shadow_copy(s, stream, false, to, to_pitch, from, from_pitch, r);
  const auto block = make_block(s, stream->device, r.width * r.rows);
  if (!block) return refuse_in_graph(s, stream, "a pageable copy larger than the arena's rest");
  const auto c = describe(stream, from, from_pitch, r, wire::HostPlace::kArena,
                          reinterpret_cast<uint64_t>(block->at));
  if (const CUresult e = s->post(wire::kCopyToHost, c, {}, stream, context_of(stream->device));
      e != CUDA_SUCCESS)
    return e;
  auto* target = static_cast<std::byte*>(to);
  return add_call(s, stream, {nullptr, nullptr, nullptr, [=] {
                                move_rows(target, to_pitch, block->at, r.width, r);
                              }});
}

CUresult capture_host_copy(Session* s, Stream* stream, void* to, uint64_t to_pitch,
                           const void* from, uint64_t from_pitch, Rect r) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  return capture_host_work(s, stream, [=] { move_rows(target, to_pitch, source, from_pitch, r); });
}

CUresult capture_host_work(Session* s, Stream* stream, std::function<void()> work) {
  return add_call(s, stream, {nullptr, nullptr, nullptr, std::move(work)});
}

HostSide whole_host_side(Session* s, const Graph& graph) {
  HostSide all = graph.host;
  for (const auto& [ordinal, id] : graph.children) {
    const Graph* inside = s->graphs.find(id);
    if (!inside || !inside->body) continue;
    const HostSide more = whole_host_side(s, *inside);
    for (const ShadowRef& shadow : more.shadows) shadow->perhaps = true;
    all.shadows.insert(all.shadows.end(), more.shadows.begin(), more.shadows.end());
    all.objects.insert(all.objects.end(), more.objects.begin(), more.objects.end());
  }
  return all;
}

CUresult adopt_host_side(const HostSide& from, GraphExec* exec) {
  for (const HostCall& call : from.calls) {
    const bool own = std::any_of(exec->host.calls.begin(), exec->host.calls.end(),
                                 [&](const HostCall& c) { return c.words == call.words; });
    if (call.words->execs == 0 || own) continue;
    note_refused("a host function, or a copy of pageable memory, of another executable graph");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  leave_host_side(exec);
  exec->host = from;
  for (HostCall& call : exec->host.calls) ++call.words->execs;
  return CUDA_SUCCESS;
}

void leave_host_side(GraphExec* exec) {
  for (HostCall& call : exec->host.calls) --call.words->execs;
  exec->host = {};
}

CUresult before_launch(Session* s, GraphExec* exec) {
  // The last run must have read what is written now.
  if (exec->running && !exec->host.shadows.empty()) {
    Stream* stream = exec->stream ? s->streams.find(exec->stream) : &exec->device->legacy;
    const CUresult e =
        stream ? synchronize_stream(s, stream)
               : s->exchange(wire::kDeviceIdle, wire::DeviceIdle{exec->device->index, 0});
    if (e != CUDA_SUCCESS) return e;
  }
  exec->running = false;
  std::vector<std::byte> packed;
  const uint64_t limit = s->channel().inline_limit();
  for (const ShadowRef& shadow : exec->host.shadows) {
    if (!shadow->to_device && !shadow->perhaps) continue;
    packed.resize(shadow->width * shadow->rows);
    move_rows(packed.data(), shadow->width, shadow->host, shadow->pitch,
              {shadow->width, shadow->rows});
    for (uint64_t at = 0; at < packed.size(); at += limit) {
      const uint64_t n = std::min<uint64_t>(limit, packed.size() - at);
      const CUresult e = s->post(wire::kShadowWrite, wire::ShadowAccess{shadow->id, at, n, 0},
                                 std::span(packed).subspan(at, n), nullptr, shadow->context);
      if (e != CUDA_SUCCESS) return e;
    }
  }
  return CUDA_SUCCESS;
}

CUresult after_launch(Session* s, GraphExec* exec, Stream* stream) {
  for (const HostCall& call : exec->host.calls) expect_call(s, stream->device, call);
  if (exec->host.shadows.empty()) return CUDA_SUCCESS;
  exec->running = true;
  exec->stream = stream->wire_id;
  constexpr uint64_t kPiece = 1 << 20;
  std::vector<std::byte> packed;
  for (const ShadowRef& shadow : exec->host.shadows) {
    if (shadow->to_device) continue;
    packed.resize(shadow->width * shadow->rows);
    for (uint64_t at = 0; at < packed.size(); at += kPiece) {
      const uint64_t n = std::min<uint64_t>(kPiece, packed.size() - at);
      size_t got = 0;
      const CUresult e =
          s->exchange(wire::kShadowRead, wire::ShadowAccess{shadow->id, at, n, stream->wire_id}, {},
                      std::span(packed).subspan(at, n), &got, nullptr, context_of(stream->device));
      if (e != CUDA_SUCCESS) return e;
      if (got < n) return CUDA_ERROR_UNKNOWN;
    }
    move_rows(shadow->host, shadow->pitch, packed.data(), shadow->width,
              {shadow->width, shadow->rows});
    exec->running = false;  // it has been waited for
  }
  return CUDA_SUCCESS;
}

}  // namespace sluice::client
