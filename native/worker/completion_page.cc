// SPDX-License-Identifier: Apache-2.0
#include "worker/completion_page.h"

namespace sluice::worker {

bool CompletionPage::share(const Driver& driver, Endpoint& endpoint, std::string* error) {
  std::atomic<uint64_t>* marks = endpoint.marks();
  if (!marks) return true;
  const size_t bytes = endpoint.mark_count() * sizeof(uint64_t);
  CUresult e = driver.cuMemHostRegister_v2(
      marks, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (e == CUDA_SUCCESS) e = driver.cuMemHostGetDevicePointer_v2(&device_, marks, 0);
  if (e != CUDA_SUCCESS) {
    *error = "the completion page cannot be registered: " + driver.error_text(e);
    return false;
  }
  count_ = static_cast<uint32_t>(endpoint.mark_count());
  return true;
}

}  // namespace sluice::worker
