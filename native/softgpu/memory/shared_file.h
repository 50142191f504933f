// SPDX-License-Identifier: Apache-2.0
// The file that SLUICE_SOFTGPU_SHARED_FILE names, which all processes with one software GPU may
// write: for each of them the memory that it has of each device (shared_use.h), and what other
// processes ask of it (runtime/checkpoint.h). A process has a place there by a lock, which the
// kernel drops when it ends. A file that cannot be used ends the process: who asked for it would
// measure something else.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace sluice::softgpu {

class SharedFile {
 public:
  static constexpr int kProcesses = 128, kDevices = 64;

  struct Process {
    std::atomic<uint32_t> pid;
    std::atomic<uint32_t> state;       // a CUprocessState
    std::atomic<uint32_t> order;       // the newest: its number, and what it is
    std::atomic<uint32_t> answered;    // the newest that was carried out
    std::atomic<uint32_t> result;      // a CUresult: what came of that
    std::atomic<uint32_t> timeout_ms;  // of the order; 0: none
    uint32_t spare[10];
    // Of an order to restore: which device, as all processes count, each one's is to be then, and 1
    // more; 0: it was not named.
    std::atomic<uint8_t> places[kDevices];
  };

  // nullptr: the setting is not there, and nothing is shared.
  static SharedFile* get();

  // MiB and more of the memory that a process has of a device, in bytes.
  std::atomic<uint64_t>& word(int process, int device) {
    return words_[process * kDevices + device];
  }
  Process& process(int index) { return processes_[index]; }
  int own() const { return own_; }
  // Whether a process has that place; one's own: yes.
  bool is_taken(int index) const;

  // One byte of the file, for as long as this lives: between processes, and between threads by the
  // mutex.
  class Lock {
   public:
    Lock(SharedFile& file, int byte, std::mutex& mutex);
    ~Lock();
    Lock(const Lock&) = delete;

   private:
    SharedFile& file_;
    const int byte_;
    std::lock_guard<std::mutex> lock_;
  };
  // While words are read and changed; while something is asked of a process.
  static constexpr int kWords = kProcesses;
  static int asking(int index) { return kProcesses + 1 + index; }

 private:
  explicit SharedFile(const char* path);

  int fd_ = -1, own_ = -1;
  std::atomic<uint64_t>* words_ = nullptr;
  Process* processes_ = nullptr;
};

}  // namespace sluice::softgpu
