// SPDX-License-Identifier: Apache-2.0
// User objects: what the application wants to live as long as graphs use it. The client's alone;
// graphs made of one another share a graph's references (objects/graph.h), and the last one to go
// has the application's function run on the thread of host functions.
#include <limits>

#include "client/driver/graph.h"

using namespace sluice::client;

namespace {

std::mutex g_counts;

// Takes references back; the last one ends the object.
bool give_back(Session* s, uint64_t id, uint64_t count) {
  UserObject gone;
  {
    std::lock_guard lock(g_counts);
    UserObject* object = s->user_objects.find(id);
    if (!object || count > object->count) return false;
    object->count -= count;
    if (object->count != 0) return true;
    gone = *object;
    s->user_objects.destroy(id);
  }
  run_soon(s, s->devices()[0].get(), [gone] { gone.destroy(gone.data); });
  return true;
}

bool take_more(Session* s, uint64_t id, uint64_t count) {
  std::lock_guard lock(g_counts);
  UserObject* object = s->user_objects.find(id);
  if (object) object->count += count;
  return object;
}

bool sane(unsigned count) {
  return count != 0 && count <= unsigned{std::numeric_limits<int>::max()};
}

}  // namespace

UserReferences::~UserReferences() {
  if (Session* s = count ? Session::get() : nullptr) give_back(s, object, count);
}

extern "C" {

CUresult cuUserObjectCreate(CUuserObject* object, void* data, CUhostFn destroy, unsigned int count,
                            unsigned int flags) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  // The flag says that nobody waits for the function: it is required.
  if (!object || !destroy || !sane(count) || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t id;
  UserObject* made = s->user_objects.create(&id);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  *made = {destroy, data, count};
  *object = reinterpret_cast<CUuserObject>(id);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  return sane(count) && take_more(s, reinterpret_cast<uint64_t>(object), count)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  return sane(count) && give_back(s, reinterpret_cast<uint64_t>(object), count)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned int count,
                                 unsigned int flags) {
  Session* s;
  Graph* graph;
  if (const CUresult e = find_graph(handle, &s, &graph); e != CUDA_SUCCESS) return e;
  const auto id = reinterpret_cast<uint64_t>(object);
  if (!sane(count) || flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE} || !s->user_objects.find(id))
    return CUDA_ERROR_INVALID_VALUE;
  // Moved ones are the caller's already.
  if (!(flags & CU_GRAPH_USER_OBJECT_MOVE) && !take_more(s, id, count))
    return CUDA_ERROR_INVALID_VALUE;
  auto held = std::make_shared<UserReferences>();
  held->object = id;
  held->count = count;
  graph->host.objects.push_back(std::move(held));
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph handle, CUuserObject object, unsigned int count) {
  Session* s;
  Graph* graph;
  if (const CUresult e = find_graph(handle, &s, &graph); e != CUDA_SUCCESS) return e;
  const auto id = reinterpret_cast<uint64_t>(object);
  uint64_t held = 0;
  for (const auto& r : graph->host.objects) held += r->object == id ? r->count : 0;
  if (!sane(count) || held < count) return CUDA_ERROR_INVALID_VALUE;
  // Others may share the graph's references: it lets go of all and keeps the rest as its own.
  auto rest = std::make_shared<UserReferences>();
  if (held > count && take_more(s, id, held - count)) {
    rest->object = id;
    rest->count = static_cast<uint32_t>(held - count);
  }
  std::erase_if(graph->host.objects, [&](const auto& r) { return r->object == id; });
  if (rest->count) graph->host.objects.push_back(std::move(rest));
  return CUDA_SUCCESS;
}

}  // extern "C"
