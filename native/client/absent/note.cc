// SPDX-License-Identifier: Apache-2.0
#include "client/absent/note.h"

#include <dlfcn.h>

#include <atomic>
#include <string>

#include "client/core/config.h"
#include "client/core/log.h"

namespace sluice::absent {

void note(const Library& library, const char* function, const void* caller) {
  // Each library has a copy of this file of its own, so one flag is one library's.
  static std::atomic<bool> told{false};
  if (told.exchange(true)) return;
  Dl_info info{};
  const bool known = dladdr(caller, &info) && info.dli_fname;
  client::log_open(client::read_config());
  client::log_line(client::LogLevel::kError,
                   std::string(library.offers) + " is not available: " + library.meaning + " (" +
                       (known ? info.dli_fname : "an unknown library") + " called " + function +
                       " of " + library.name + "; its functions answer " + library.status + ")");
}

}  // namespace sluice::absent
