// SPDX-License-Identifier: Apache-2.0
// For as long as it lives this process gets no new thread, as at its limit of threads: the kernel
// has no room for a stack of the size that is asked for.
#pragma once

#include <pthread.h>

#include <cstddef>

namespace sluice::test {

class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t endless;
    pthread_attr_init(&endless);
    pthread_attr_setstacksize(&endless, size_t{1} << 50);
    pthread_setattr_default_np(&endless);
    pthread_attr_destroy(&endless);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

}  // namespace sluice::test
