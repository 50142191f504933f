// SPDX-License-Identifier: Apache-2.0
// libibverbs of the machine that this runs on, loaded when it is asked for, so that nothing here
// needs it to be built (but for rdma-core's headers) or to start. What verbs.h has inline (posting,
// polling, arming) goes through the device's own table and is called as it stands there.
#pragma once

#include <infiniband/verbs.h>

#include <string>

namespace sluice::channel {

struct Verbs {
#define SLUICE_VERB(name) decltype(&::name) name
  SLUICE_VERB(ibv_fork_init);
  SLUICE_VERB(ibv_get_device_list);
  SLUICE_VERB(ibv_free_device_list);
  SLUICE_VERB(ibv_get_device_name);
  SLUICE_VERB(ibv_open_device);
  SLUICE_VERB(ibv_close_device);
  SLUICE_VERB(ibv_query_port);
  SLUICE_VERB(ibv_query_gid);
  SLUICE_VERB(ibv_alloc_pd);
  SLUICE_VERB(ibv_dealloc_pd);
  SLUICE_VERB(ibv_reg_mr);
  SLUICE_VERB(ibv_dereg_mr);
  SLUICE_VERB(ibv_create_comp_channel);
  SLUICE_VERB(ibv_destroy_comp_channel);
  SLUICE_VERB(ibv_create_cq);
  SLUICE_VERB(ibv_destroy_cq);
  SLUICE_VERB(ibv_get_cq_event);
  SLUICE_VERB(ibv_ack_cq_events);
  SLUICE_VERB(ibv_create_qp);
  SLUICE_VERB(ibv_modify_qp);
  SLUICE_VERB(ibv_destroy_qp);
  SLUICE_VERB(ibv_get_async_event);
  SLUICE_VERB(ibv_ack_async_event);
  SLUICE_VERB(ibv_wc_status_str);
  SLUICE_VERB(ibv_event_type_str);
#undef SLUICE_VERB

  // Loaded once for the process; nullptr with `error`: what is missing and how it is had.
  static const Verbs* get(std::string* error);
};

}  // namespace sluice::channel
