// SPDX-License-Identifier: Apache-2.0
#include "worker/options.h"

#include <algorithm>
#include <cstring>

namespace sluice::worker {

namespace {

// "DIR:DIR…"
std::vector<std::string> split(const std::string& folders) {
  std::vector<std::string> all;
  for (size_t at = 0; at < folders.size();) {
    const size_t end = std::min(folders.find(':', at), folders.size());
    if (end > at) all.push_back(folders.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

}  // namespace

bool read_options(int argc, char** argv, Options* o, std::string* error) {
  std::vector<process::Option> known = process::options_of(o);
  const process::Option own[] = {
      process::text_option("--driver", &o->driver),
      {"--libraries",
       [=](const char* value) { return o->libraries = split(value), std::string(); }},
      process::text_option("--visible-devices", &o->visible),
      process::text_option("--beside", &o->beside),
      {"--confine",
       [=](const char* value) -> std::string {
         o->waits = std::strcmp(value, "session") == 0;
         return o->waits ? "" : "session";
       }},
      process::switch_option("--meter", &o->meter),
      process::switch_option("--concurrent", &o->concurrent)};
  known.insert(known.end(), std::begin(own), std::end(own));
  if (!process::read_options({argv + 1, static_cast<size_t>(argc - 1)}, known, error)) return false;
  if (!o->beside.empty() && o->visible.empty()) {
    *error = "--beside is of a worker whose own GPUs are named: give --visible-devices";
    return false;
  }
  if (o->control >= 0 && !o->driver.empty()) return true;
  *error = "--control and --driver are needed";
  return false;
}

}  // namespace sluice::worker
