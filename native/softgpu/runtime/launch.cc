// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/launch.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <thread>

#include "channel/thread.h"
#include "softgpu/interp/launch_state.h"
#include "softgpu/runtime/capture.h"
#include "softgpu/runtime/library.h"
#include "softgpu/runtime/log.h"
#include "softgpu/runtime/profiling.h"

namespace sluice::softgpu {
namespace {

std::atomic<uint64_t> next_grid{1};

// Threads that help the streams' own threads with grids of more than one block. They sleep while
// there are none.
class BlockPool {
 public:
  static BlockPool& instance() {
    static auto* pool = new BlockPool;
    return *pool;
  }

  void run(LaunchState& launch) {
    if (launch.blocks() == 1 || helpers_ == 0) {
      run_blocks(launch);
      return;
    }
    Job job{&launch, 0};
    {
      std::lock_guard lock(mutex_);
      start_threads();
      jobs_.push_back(&job);
    }
    work_.notify_all();
    run_blocks(launch);
    std::unique_lock lock(mutex_);
    std::erase(jobs_, &job);
    left_.wait(lock, [&] { return job.helping == 0; });
  }

 private:
  struct Job {
    LaunchState* launch;
    unsigned helping;
  };

  BlockPool() : helpers_(std::max(1u, std::thread::hardware_concurrency()) - 1) {}

  void start_threads() {
    if (started_) return;
    started_ = true;
    // A launch's own thread does what nobody helps with.
    for (unsigned i = 0; i < helpers_; ++i)
      if (!channel::start_detached("", [this] { help(); })) return;
  }

  void help() {
    std::unique_lock lock(mutex_);
    for (;;) {
      Job* job = nullptr;
      work_.wait(lock, [&] {
        for (Job* candidate : jobs_) {
          LaunchState& launch = *candidate->launch;
          if (!launch.stopped() && launch.next_block.load() < launch.blocks()) {
            job = candidate;
            return true;
          }
        }
        return false;
      });
      ++job->helping;
      lock.unlock();
      run_blocks(*job->launch);
      lock.lock();
      if (--job->helping == 0) left_.notify_all();
    }
  }

  const unsigned helpers_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable left_;
  std::deque<Job*> jobs_;
  bool started_ = false;
};

CUresult result_of(Fault fault) {
  switch (fault) {
    case Fault::kIllegalAddress:
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    case Fault::kMisaligned:
      return CUDA_ERROR_MISALIGNED_ADDRESS;
    case Fault::kAssert:
      return CUDA_ERROR_ASSERT;
    case Fault::kIllegalInstruction:
      return CUDA_ERROR_ILLEGAL_INSTRUCTION;
    default:
      return CUDA_ERROR_LAUNCH_FAILED;
  }
}

void execute(Context& context, LaunchState& launch) {
  log(2, "kernel %s <<<(%u,%u,%u), (%u,%u,%u), %u>>>", launch.kernel->name.c_str(), launch.grid[0],
      launch.grid[1], launch.grid[2], launch.block[0], launch.block[1], launch.block[2],
      launch.dynamic_shared);
  try {
    BlockPool::instance().run(launch);
  } catch (const std::bad_alloc&) {
    launch.report(Fault::kStackOverflow, "out of memory for the kernel's own state");
  }
  if (launch.fault != Fault::kNone) {
    // As the driver does, to standard error.
    if (launch.fault == Fault::kAssert) std::fprintf(stderr, "%s\n", launch.fault_text.c_str());
    context.poison(result_of(launch.fault), launch.fault_text);
  }
  notify_pollers();
}

bool collect_parameters(const Function& function, void** params, void** extra,
                        std::vector<uint8_t>& block) {
  block.assign(function.parameter_bytes, 0);
  if (params) {
    for (size_t i = 0; i < function.parameters.size(); ++i) {
      const Parameter& parameter = function.parameters[i];
      if (!params[i]) return false;
      std::memcpy(block.data() + parameter.offset, params[i], parameter.size);
    }
    return true;
  }
  if (!extra) return function.parameters.empty();
  const void* buffer = nullptr;
  size_t size = 0;
  for (size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = extra[i + 1];
    } else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      size = *static_cast<size_t*>(extra[i + 1]);
    } else {
      return false;
    }
  }
  if (!buffer || size < function.parameter_bytes) return function.parameters.empty();
  std::memcpy(block.data(), buffer, block.size());
  return true;
}

CUresult check(const KernelFunction& kernel, const LaunchShape& shape) {
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (shape.grid[i] == 0 || shape.block[i] == 0) return CUDA_ERROR_INVALID_VALUE;
    if (shape.grid[i] > kMaxGridDim[i] || shape.block[i] > kMaxBlockDim[i]) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    threads *= shape.block[i];
  }
  const Function& function = *kernel.function;
  if (threads > kMaxThreadsPerBlock) return CUDA_ERROR_INVALID_VALUE;
  if (threads > max_threads(kernel)) return CUDA_ERROR_INVALID_VALUE;
  if (function.required_threads[0] != 0) {
    for (int i = 0; i < 3; ++i) {
      if (shape.block[i] != function.required_threads[i]) return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (shape.dynamic_shared > dynamic_shared_limit(kernel)) return CUDA_ERROR_INVALID_VALUE;
  if (shape.cooperative) {
    uint64_t blocks = static_cast<uint64_t>(shape.grid[0]) * shape.grid[1] * shape.grid[2];
    unsigned resident = blocks_per_sm(kernel, static_cast<unsigned>(threads), shape.dynamic_shared);
    if (blocks > static_cast<uint64_t>(resident) * kernel.module->context().device().sm_count) {
      return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

unsigned dynamic_shared_limit(const KernelFunction& kernel) {
  int chosen = kernel.settings.max_dynamic_shared.load();
  unsigned fixed = kernel.function->static_shared;
  if (chosen >= 0) return static_cast<unsigned>(chosen);
  return fixed >= kSharedPerBlock ? 0 : kSharedPerBlock - fixed;
}

unsigned max_threads(const KernelFunction& kernel) {
  const uint32_t* limit = kernel.function->max_threads[0] != 0 ? kernel.function->max_threads
                                                               : kernel.function->required_threads;
  if (limit[0] == 0) return kMaxThreadsPerBlock;
  uint64_t threads =
      static_cast<uint64_t>(limit[0]) * std::max(limit[1], 1u) * std::max(limit[2], 1u);
  return static_cast<unsigned>(std::min<uint64_t>(threads, kMaxThreadsPerBlock));
}

unsigned blocks_per_sm(const KernelFunction& kernel, unsigned threads, size_t dynamic_shared) {
  if (threads == 0 || threads > max_threads(kernel)) return 0;
  if (dynamic_shared > dynamic_shared_limit(kernel)) return 0;
  unsigned warps = (threads + kWarpSize - 1) / kWarpSize;
  unsigned blocks = std::min(kBlocksPerSm, kThreadsPerSm / kWarpSize / warps);
  uint64_t shared = kernel.function->static_shared + dynamic_shared + kSharedReserved;
  return static_cast<unsigned>(std::min<uint64_t>(blocks, kSharedPerSm / shared));
}

CUresult prepare_kernel(Context& context, CUfunction handle, const LaunchShape& shape,
                        void** params, void** extra, KernelWork& work) {
  CUresult why = CUDA_SUCCESS;
  work.kernel = launchable(context, handle, why);
  if (!work.kernel) return why;
  if (params && extra) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult wrong = check(*work.kernel, shape); wrong != CUDA_SUCCESS) return wrong;
  if (!collect_parameters(*work.kernel->function, params, extra, work.params)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  work.handle = handle;
  work.held = work.kernel->module->shared_from_this();
  work.shape = shape;
  return CUDA_SUCCESS;
}

void run_kernel(Context& context, const KernelWork& work) {
  const profiling::Running running(work);
  LaunchState launch;
  launch.params = work.params;
  launch.kernel = work.kernel->function;
  launch.program = &work.held->program();
  launch.device = context.device().ordinal;
  std::copy(work.shape.grid, work.shape.grid + 3, launch.grid);
  std::copy(work.shape.block, work.shape.block + 3, launch.block);
  launch.dynamic_shared = work.shape.dynamic_shared;
  launch.grid_id = next_grid.fetch_add(1);
  launch.sm_count = context.device().sm_count;
  // Frames of callees are laid out by us and not by a compiler that knows their depth: be generous,
  // untouched pages cost nothing.
  launch.stack_limit = std::max<uint64_t>(context.limit(CU_LIMIT_STACK_SIZE), 64u << 10);
  launch.cooperative = work.shape.cooperative;
  launch.printf = &context.printf_sink();
  launch.heap = context.heap();
  launch.cancelled = &context.error_flag();
  execute(context, launch);
}

CUresult launch_kernel(Context& context, Stream& stream, KernelWork work) {
  if (auto answer = captured(stream, [&] { return Work(std::move(work)); })) return *answer;
  context.printf_sink().flush();  // CUDA prints what has come at launches too
  auto kept = std::make_shared<KernelWork>(std::move(work));
  context.submit(stream, [&context, kept] { run_kernel(context, *kept); });
  return CUDA_SUCCESS;
}

}  // namespace sluice::softgpu
