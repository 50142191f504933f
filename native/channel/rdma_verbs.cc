// SPDX-License-Identifier: Apache-2.0
#include "channel/rdma_verbs.h"

#include <dlfcn.h>

namespace sluice::channel {

namespace {

struct Loaded {
  Verbs functions{};
  std::string error;
};

Loaded load() {
  Loaded l;
  void* library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    l.error =
        "RDMA needs libibverbs.so.1 with its providers, which is not here: install rdma-core "
        "(Debian: libibverbs1 and ibverbs-providers)";
    return l;
  }
  const auto find = [&](const char* name, auto* to) {
    *to = reinterpret_cast<std::remove_pointer_t<decltype(to)>>(dlsym(library, name));
    if (!*to && l.error.empty())
      l.error = std::string("the libibverbs here is too old (it lacks ") + name +
                "): install rdma-core 17 or later";
  };
  Verbs& v = l.functions;
#define SLUICE_FIND(name) find(#name, &v.name)
  SLUICE_FIND(ibv_fork_init);
  SLUICE_FIND(ibv_get_device_list);
  SLUICE_FIND(ibv_free_device_list);
  SLUICE_FIND(ibv_get_device_name);
  SLUICE_FIND(ibv_open_device);
  SLUICE_FIND(ibv_close_device);
  SLUICE_FIND(ibv_query_port);
  SLUICE_FIND(ibv_query_gid);
  SLUICE_FIND(ibv_alloc_pd);
  SLUICE_FIND(ibv_dealloc_pd);
  SLUICE_FIND(ibv_reg_mr);
  SLUICE_FIND(ibv_dereg_mr);
  SLUICE_FIND(ibv_create_comp_channel);
  SLUICE_FIND(ibv_destroy_comp_channel);
  SLUICE_FIND(ibv_create_cq);
  SLUICE_FIND(ibv_destroy_cq);
  SLUICE_FIND(ibv_get_cq_event);
  SLUICE_FIND(ibv_ack_cq_events);
  SLUICE_FIND(ibv_create_qp);
  SLUICE_FIND(ibv_modify_qp);
  SLUICE_FIND(ibv_destroy_qp);
  SLUICE_FIND(ibv_get_async_event);
  SLUICE_FIND(ibv_ack_async_event);
  SLUICE_FIND(ibv_wc_status_str);
  SLUICE_FIND(ibv_event_type_str);
#undef SLUICE_FIND
  // Before anything is registered: what a child of fork() has in common with its parent is then
  // never moved away from under the adapter. Kernels since 5.12 need nothing for it.
  if (l.error.empty()) v.ibv_fork_init();
  return l;
}

}  // namespace

const Verbs* Verbs::get(std::string* error) {
  static const Loaded loaded = load();
  if (loaded.error.empty()) return &loaded.functions;
  *error = loaded.error;
  return nullptr;
}

}  // namespace sluice::channel
