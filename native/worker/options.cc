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
      {"--driver", [=](const char* value) { o->driver = value; }},
      {"--libraries", [=](const char* value) { o->libraries = split(value); }},
      {"--visible-devices", [=](const char* value) { o->visible = value; }},
      {"--confine", [=](const char* value) { o->waits = std::strcmp(value, "session") == 0; }},
      {"--meter", [=](const char* value) { o->meter = process::is_on(value); }}};
  known.insert(known.end(), std::begin(own), std::end(own));
  if (!process::read_options({argv + 1, static_cast<size_t>(argc - 1)}, known, error)) return false;
  if (o->control >= 0 && !o->driver.empty()) return true;
  *error = "--control and --driver are needed";
  return false;
}

}  // namespace sluice::worker
