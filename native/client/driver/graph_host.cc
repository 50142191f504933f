// SPDX-License-Identifier: Apache-2.0
// The host's side of graphs. A node runs any number of times and cannot carry a new value each
// time, as marks would need: host functions shake hands by two words (objects/graph.h), of the
// arena or, over a network, of the worker's. Which executable graph has which words is decided
// here.
#include <set>

#include "client/core/log.h"
#include "client/driver/graph.h"
#include "client/driver/wait.h"

namespace sluice::client {

namespace {

std::mutex g_mutex;  // what follows
struct Words {
  uint64_t address;
  std::atomic<uint64_t>*ready, *done;
};
std::vector<Words> g_used;  // given back, until the node's last write has landed
std::vector<Words> g_spare;
uint32_t g_signals = 0;  // of the worker's, minted so far
std::atomic<uint64_t> g_next_key{1};

constexpr size_t kWordsPage = 4096, kWordsBytes = wire::kSignalBytes;  // a cache line each

// More words to give out. False: there are none.
bool add_words(Session* s) {
  if (!s->marks()) {
    if (g_signals == wire::kMaxSignals) return false;
    g_spare.push_back({wire::kSignalBase + g_signals++ * wire::kSignalBytes, nullptr, nullptr});
    return true;
  }
  void* page = nullptr;
  if (!s->host_memory().allocate(kWordsPage, 0, 0, &page)) return false;
  if (!s->host_memory().in_arena(page, kWordsPage)) {
    s->host_memory().release(page);
    return false;
  }
  for (size_t at = 0; at < kWordsPage; at += kWordsBytes) {
    auto* words = reinterpret_cast<std::atomic<uint64_t>*>(static_cast<std::byte*>(page) + at);
    words[0].store(0);
    words[1].store(0);
    g_spare.push_back({reinterpret_cast<uint64_t>(words), words, words + 1});
  }
  return true;
}

// Forgets calls whose nodes were destroyed: nobody would ever make them.
CUresult drop_stale_calls(Session* s, uint64_t graph_id, Graph* graph) {
  std::vector<wire::GraphEdge> words;
  const CUresult e =
      fetch_list(s, wire::kGraphList, wire::GraphList{graph_id, wire::GraphListOf::kWords, 0, 0, 0},
                 graph->device->context(), &words);
  if (e != CUDA_SUCCESS) return e;
  std::erase_if(graph->host.calls, [&](const HostCall& call) {
    return std::none_of(words.begin(), words.end(), [&](const wire::GraphEdge& there) {
      return there.data == call.words->address;
    });
  });
  graph->host.stale = false;
  return CUDA_SUCCESS;
}

}  // namespace

// The words stay a graph's, and wait for its node's last write.
Handshake::~Handshake() {
  if (!address) return;
  std::lock_guard lock(g_mutex);
  g_used.push_back({address, ready, done});
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

Graph* graph_of_capture(Session* s, Stream* stream) {
  CUstreamCaptureStatus status;
  Capture capture;
  if (s->captures.status(stream, &status, &capture) != CUDA_SUCCESS ||
      status == CU_STREAM_CAPTURE_STATUS_NONE)
    return nullptr;
  return s->graphs.find(capture.graph);
}

uint64_t make_call_key() { return g_next_key++; }

std::shared_ptr<Handshake> make_handshake(Session* s) {
  if (!host_functions_run()) return nullptr;
  std::lock_guard lock(g_mutex);
  // A node that has run took `done` back last. Of the worker's words nobody here sees that: they
  // are used again once nothing at all is under way.
  std::erase_if(g_used, [&](const Words& words) {
    const auto idle = [&] {
      return std::all_of(s->devices().begin(), s->devices().end(),
                         [&](const auto& d) { return s->work().idle(*d); });
    };
    if (words.done ? words.done->load(std::memory_order_acquire) != 0 : !idle()) return false;
    g_spare.push_back(words);
    return true;
  });
  if (g_spare.empty() && !add_words(s)) return nullptr;
  auto made = std::make_shared<Handshake>();
  made->address = g_spare.back().address;
  made->ready = g_spare.back().ready;
  made->done = g_spare.back().done;
  g_spare.pop_back();
  if (made->ready) made->ready->store(0);
  return made;
}

std::vector<wire::MemOp> handshake_operations(const Handshake& words) {
  const uint64_t ready = words.address, done = ready + sizeof(uint64_t);
  return {{CU_STREAM_MEM_OP_WRITE_VALUE_64, 0, ready, 1},
          {CU_STREAM_MEM_OP_WAIT_VALUE_64, CU_STREAM_WAIT_VALUE_GEQ, done, 1},
          {CU_STREAM_MEM_OP_WRITE_VALUE_64, 0, done, 0}};
}

namespace {

CUresult capture_call(Session* s, Stream* stream, HostCall call) {
  Graph* graph = graph_of_capture(s, stream);
  if (!graph) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (graph->body)  // CUDA takes none there either
    return refuse_in_graph(s, stream, "a host function in a condition");
  call.key = make_call_key();
  call.words = make_handshake(s);
  if (!call.words) return refuse_in_graph(s, stream, "one host function more than there are words");
  const std::vector<wire::MemOp> operations = handshake_operations(*call.words);
  const wire::StreamMemOps m{stream->wire_id, static_cast<uint32_t>(operations.size()), 0};
  graph->host.calls.push_back(std::move(call));
  return s->post(wire::kStreamMemOps, m, std::as_bytes(std::span(operations)), stream,
                 stream->device->context());
}

}  // namespace

CUresult capture_host_function(Session* s, Stream* stream, CUhostFn function, void* data) {
  HostCall call;
  call.function = function;
  call.data = data;
  call.run = [=] { function(data); };
  return capture_call(s, stream, std::move(call));
}

CUresult capture_host_work(Session* s, Stream* stream, std::function<void()> work) {
  HostCall call;
  call.run = std::move(work);
  return capture_call(s, stream, std::move(call));
}

HostSide whole_host_side(Session* s, const Graph& graph) {
  HostSide all = graph.host;
  for (const auto& [ordinal, id] : graph.children) {
    const Graph* inside = s->graphs.find(id);
    if (!inside || !inside->body) continue;
    const HostSide more = whole_host_side(s, *inside);
    all.around.insert(all.around.end(), more.around.begin(), more.around.end());
    all.objects.insert(all.objects.end(), more.objects.begin(), more.objects.end());
  }
  return all;
}

Graph* root_of(Session* s, Graph* graph) {
  while (graph->parent && !graph->body) {
    Graph* outer = s->graphs.find(graph->parent);
    if (!outer) break;
    graph = outer;
  }
  return graph;
}

HostCall* find_call(HostSide* host, uint64_t key) {
  for (HostCall& call : host->calls)
    if (call.key == key) return &call;
  return nullptr;
}

CUresult renew_words(Session* s, uint64_t graph_id, Graph* graph, bool new_keys,
                     const std::function<bool(const HostCall&)>& taken) {
  std::vector<wire::WordsChange> changes;
  std::vector<std::pair<HostCall*, std::shared_ptr<Handshake>>> renewed;
  for (HostCall& call : graph->host.calls) {
    if (!taken(call)) continue;
    auto words = make_handshake(s);
    if (!words) return CUDA_ERROR_OUT_OF_MEMORY;
    changes.push_back({call.words->address, words->address});
    renewed.emplace_back(&call, std::move(words));
  }
  for (size_t at = 0; at < changes.size(); at += wire::kMaxWordsChanges) {
    const auto piece = std::span(changes).subspan(
        at, std::min<size_t>(wire::kMaxWordsChanges, changes.size() - at));
    const wire::GraphWords m{graph_id, static_cast<uint32_t>(piece.size()), 0};
    const CUresult e = s->exchange(wire::kGraphWords, m, std::as_bytes(piece), {}, nullptr, nullptr,
                                   graph->device->context());
    if (e != CUDA_SUCCESS) return e;
  }
  for (auto& [call, words] : renewed) {
    call->words = std::move(words);
    if (new_keys) call->key = make_call_key();
  }
  return CUDA_SUCCESS;
}

CUresult prepare_host_side(Session* s, uint64_t graph_id, Graph* graph, const GraphExec& exec) {
  if (root_of(s, graph)->host.calls.empty()) return CUDA_SUCCESS;
  if (graph->parent) {
    note_refused("the launch of a part of a graph that calls host functions");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (graph->host.stale)
    if (const CUresult e = drop_stale_calls(s, graph_id, graph); e != CUDA_SUCCESS) return e;
  return renew_words(s, graph_id, graph, false, [&](const HostCall& call) {
    const bool own = std::any_of(exec.host.calls.begin(), exec.host.calls.end(),
                                 [&](const HostCall& mine) { return mine.words == call.words; });
    return !own && call.words->busy();
  });
}

void adopt_host_side(const HostSide& from, GraphExec* exec) {
  HostSide now = from;
  for (HostCall& call : now.calls) ++call.words->execs;
  leave_host_side(exec);
  exec->host = std::move(now);
}

void leave_host_side(GraphExec* exec) {
  for (HostCall& call : exec->host.calls) --call.words->execs;
  exec->host = {};
}

namespace {

// Has the stream wait at this point for a function here.
CUresult call_here(Session* s, Stream* stream, std::function<void()> run) {
  HostCall call;
  call.words = make_handshake(s);
  if (!call.words) return CUDA_ERROR_OUT_OF_MEMORY;
  call.run = std::move(run);
  const std::vector<wire::MemOp> operations = handshake_operations(*call.words);
  const wire::StreamMemOps m{stream->wire_id, static_cast<uint32_t>(operations.size()), 0};
  expect_call(s, stream->device, call);
  return s->post(wire::kStreamMemOps, m, std::as_bytes(std::span(operations)), stream,
                 stream->device->context());
}

}  // namespace

CUresult before_launch(Session* s, GraphExec* exec, Stream* stream) {
  for (const HostCall& call : exec->host.calls) expect_call(s, stream->device, call);
  if (exec->host.around.empty()) return CUDA_SUCCESS;
  // Another stream's run may still be using the stand-ins.
  Stream* last = exec->stream ? s->streams.find(exec->stream) : nullptr;
  if (last && last != stream)
    if (const CUresult e = synchronize_stream(s, last); e != CUDA_SUCCESS) return e;
  exec->stream = stream->wire_id;
  return call_here(s, stream, [around = exec->host.around] {
    for (const HostAround& a : around) a.before();
  });
}

CUresult after_launch(Session* s, GraphExec* exec, Stream* stream) {
  if (exec->host.around.empty()) return CUDA_SUCCESS;
  return call_here(s, stream, [around = exec->host.around] {
    for (const HostAround& a : around)
      if (a.after) a.after();
  });
}

}  // namespace sluice::client
