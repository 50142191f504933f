// SPDX-License-Identifier: Apache-2.0
// Kernels that use what real programs use; each test launches some and compares with the host.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cassert>
#include <cstdio>

#define KERNEL extern "C" __global__ void

__device__ int counter = 3;
__device__ int table[4] = {10, 20, 30, 40};
__device__ int* pointer_to_table = &table[2];
__constant__ float weights[4] = {1.5f, 2.5f, 3.5f, 4.5f};

KERNEL vector_add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

constexpr int kTile = 16;
KERNEL matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float left[kTile][kTile];
  __shared__ float right[kTile][kTile];
  int row = blockIdx.y * kTile + threadIdx.y;
  int column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0;
  for (int t = 0; t < (n + kTile - 1) / kTile; ++t) {
    int k = t * kTile;
    left[threadIdx.y][threadIdx.x] =
        row < n && k + threadIdx.x < n ? a[row * n + k + threadIdx.x] : 0;
    right[threadIdx.y][threadIdx.x] =
        column < n && k + threadIdx.y < n ? b[(k + threadIdx.y) * n + column] : 0;
    __syncthreads();
    for (int i = 0; i < kTile; ++i) sum = fmaf(left[threadIdx.y][i], right[i][threadIdx.x], sum);
    __syncthreads();
  }
  if (row < n && column < n) c[row * n + column] = sum;
}

KERNEL reduce(const int* in, int* total, int n) {
  __shared__ int partial[32];
  int sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    sum += in[i];
  }
  for (int step = 16; step > 0; step >>= 1) sum += __shfl_down_sync(~0u, sum, step);
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
    for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x == 0) atomicAdd(total, sum);
  }
}

// Lanes take different numbers of turns and different ways; all must meet again.
KERNEL collatz(const unsigned* in, unsigned* steps, unsigned* agreed) {
  unsigned i = threadIdx.x;
  unsigned n = in[i];
  unsigned count = 0;
  while (n != 1) {
    if (n & 1) {
      n = 3 * n + 1;
    } else {
      n >>= 1;
    }
    ++count;
  }
  steps[i] = count;
  agreed[i] = __activemask();
}

KERNEL votes(const int* in, unsigned* out) {
  int v = in[threadIdx.x];
  unsigned base = threadIdx.x * 6;
  out[base] = __ballot_sync(~0u, v > 10);
  out[base + 1] = __any_sync(~0u, v == 7);
  out[base + 2] = __all_sync(~0u, v >= 0);
  out[base + 3] = __popc(__activemask());
  unsigned half = threadIdx.x < 16 ? 0xffffu : 0xffff0000u;
  if (threadIdx.x < 16) {
    out[base + 4] = __ballot_sync(half, v & 1);
  } else {
    out[base + 4] = __ballot_sync(half, !(v & 1));
  }
  out[base + 5] = __shfl_sync(~0u, v, (threadIdx.x + 5) & 31);
}

// Half of the warp reaches the exchange by another way than the other half.
KERNEL late_meeting(int* out) {
  int v = threadIdx.x;
  if (threadIdx.x % 2) {
    for (int i = 0; i < static_cast<int>(threadIdx.x); ++i) v += i;
  } else {
    v *= 3;
  }
  __syncwarp();
  out[threadIdx.x] = __shfl_xor_sync(~0u, v, 1);
}

KERNEL spin_lock(int* lock, int* shared_count) {
  // One lane after the other, even inside a warp.
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      int held = *reinterpret_cast<volatile int*>(shared_count);
      *reinterpret_cast<volatile int*>(shared_count) = held + 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}

// The way that needs lanes to pass one another: the holder leaves the loop before it unlocks.
KERNEL spin_lock_outside(int* lock, int* shared_count) {
  while (atomicCAS(lock, 0, 1) != 0) {
  }
  __threadfence();
  int held = *reinterpret_cast<volatile int*>(shared_count);
  *reinterpret_cast<volatile int*>(shared_count) = held + 1;
  __threadfence();
  atomicExch(lock, 0);
}

KERNEL double_math(const double* in, double* out) {
  int i = threadIdx.x;
  double v = in[i];
  out[i * 8 + 0] = v * v + 1.0 / (v + 3.0);
  out[i * 8 + 1] = sqrt(fabs(v));
  out[i * 8 + 2] = sin(v);
  out[i * 8 + 3] = exp(v * 0.1);
  out[i * 8 + 4] = log(fabs(v) + 1.0);
  out[i * 8 + 5] = pow(fabs(v), 1.3);
  out[i * 8 + 6] = floor(v) + ceil(v * 0.5);
  out[i * 8 + 7] = fmod(v, 2.5);
}

KERNEL float_math(const float* in, float* out) {
  int i = threadIdx.x;
  float v = in[i];
  out[i * 8 + 0] = v / 3.7f;
  out[i * 8 + 1] = sqrtf(fabsf(v));
  out[i * 8 + 2] = sinf(v);
  out[i * 8 + 3] = expf(v * 0.1f);
  out[i * 8 + 4] = logf(fabsf(v) + 1.0f);
  out[i * 8 + 5] = tanhf(v);
  out[i * 8 + 6] = rsqrtf(fabsf(v) + 0.5f);
  out[i * 8 + 7] = erff(v);
}

KERNEL integer_math(const int* in, long long* out) {
  int i = threadIdx.x;
  int a = in[i];
  int b = in[i + 32];
  unsigned ua = a, ub = b;
  long long wide = static_cast<long long>(a) * b;
  long long* o = out + i * 16;
  o[0] = b ? a / b : 0;
  o[1] = b ? a % b : 0;
  o[2] = ub ? ua / ub : 0;
  o[3] = ub ? ua % ub : 0;
  o[4] = wide;
  o[5] = __mulhi(a, b);
  o[6] = __umulhi(ua, ub);
  o[7] = min(a, b) + static_cast<long long>(max(ua, ub));
  o[8] = __popc(ua) * 100 + __clz(a);
  o[9] = __brev(ua);
  o[10] = __ffs(a);
  o[11] = __funnelshift_l(ua, ub, 7);
  o[12] = __byte_perm(ua, ub, 0x5140);
  o[13] = b ? wide / b : 0;
  o[14] = static_cast<long long>(abs(a)) + (a >> 3) + (ua >> 5);
  o[15] = __dp4a(a, b, 17);
}

KERNEL half_math(const float* in, float* out) {
  int i = threadIdx.x;
  __half a = __float2half(in[i]);
  __half b = __float2half(in[i + 32]);
  float* o = out + i * 6;
  o[0] = __half2float(__hadd(a, b));
  o[1] = __half2float(__hmul(a, b));
  o[2] = __half2float(__hfma(a, b, a));
  __half2 packed = __halves2half2(a, b);
  o[3] = __high2float(__hmul2(packed, packed));
  __nv_bfloat16 c = __float2bfloat16(in[i]);
  __nv_bfloat16 e = __float2bfloat16(in[i + 32]);
  o[4] = __bfloat162float(__hadd(c, e));
#if __CUDA_ARCH__ >= 800
  o[5] = __bfloat162float(__hfma(c, e, c));
#else
  o[5] = __bfloat162float(
      __float2bfloat16(fmaf(__bfloat162float(c), __bfloat162float(e), __bfloat162float(c))));
#endif
}

__device__ __noinline__ int fibonacci(int n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
KERNEL calls(int* out) { out[threadIdx.x] = fibonacci(threadIdx.x % 12); }

__device__ __noinline__ int twice(int v) { return 2 * v; }
__device__ __noinline__ int negate(int v) { return -v; }
__device__ __noinline__ int square(int v) { return v * v; }
typedef int (*Operation)(int);
__device__ Operation operations[3] = {twice, negate, square};
KERNEL indirect_calls(int* out) { out[threadIdx.x] = operations[threadIdx.x % 3](threadIdx.x); }

KERNEL globals(int* out) {
  atomicAdd(&counter, 2);
  out[threadIdx.x] = *pointer_to_table + static_cast<int>(weights[threadIdx.x & 3] * 2);
}

struct Shape {
  char tag;
  double size;
  int corner[5];
};
KERNEL by_value(Shape shape, double* out) {
  out[threadIdx.x] = shape.size + shape.corner[threadIdx.x % 5] + shape.tag;
}

KERNEL local_array(int* out) {
  int stack[20];
  for (int i = 0; i < 20; ++i) stack[i] = i * static_cast<int>(threadIdx.x);
  int sum = 0;
  for (int i = 0; i < 20; ++i) sum += stack[(i * 7 + threadIdx.x) % 20];
  out[threadIdx.x] = sum;
}

KERNEL dynamic_shared(int* out, int n) {
  extern __shared__ int room[];
  __shared__ int fixed[4];
  if (threadIdx.x < 4) fixed[threadIdx.x] = 100;
  for (int i = threadIdx.x; i < n; i += blockDim.x) room[i] = i;
  __syncthreads();
  out[threadIdx.x] = room[n - 1 - threadIdx.x] + fixed[threadIdx.x & 3];
}

KERNEL greet(int n) {
  if (threadIdx.x < n) {
    printf("lane %d of %s: %.2f %5u %lld %c%%\n", threadIdx.x, "block", threadIdx.x * 0.5,
           blockIdx.x, 1ll << 40, 'x');
  }
}

KERNEL check_all(const int* in) { assert(in[threadIdx.x] >= 0); }

KERNEL write_at(int* p, long long offset) { p[offset] = 1; }
KERNEL trap_if(int v) {
  if (v) __trap();
}

KERNEL atomics(int* ints, unsigned* wraps, float* real, double* wide, unsigned long long* big) {
  int v = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&ints[0], v);
  atomicMin(&ints[1], -v);
  atomicMax(&ints[2], v);
  atomicOr(&ints[3], 1 << (v & 31));
  atomicXor(&ints[4], v);
  atomicSub(&ints[5], 1);
  atomicInc(&wraps[0], 99);
  atomicDec(&wraps[1], 99);
  atomicAdd(real, 0.5f);
  atomicAdd(wide, 0.25);
  atomicAdd(big, 1ull << 33);
}

KERNEL barrier_counts(int* out) {
  int even = __syncthreads_count(threadIdx.x % 2 == 0);
  int any = __syncthreads_or(threadIdx.x == 70);
  int all = __syncthreads_and(threadIdx.x < 64);
  out[threadIdx.x] = even * 100 + any * 10 + all;
}

KERNEL early_exit(int* out) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  if (threadIdx.x % 3 == 0) return;
  atomicAdd(&sum, 1);
  __syncthreads();
  out[threadIdx.x] = sum;
}

KERNEL spin_until(volatile int* flag) {
  while (*flag == 0) {
  }
}

KERNEL append(int* list, int* length, int value) {
  if (threadIdx.x == 0) list[atomicAdd(length, 1)] = value;
}

KERNEL switch_case(int* out) {
  int v = threadIdx.x;
  switch (threadIdx.x % 9) {
    case 0:
      v += 1;
      break;
    case 1:
      v *= 3;
      break;
    case 2:
      v -= 7;
      break;
    case 3:
      v ^= 0x55;
      break;
    case 4:
      v = v * v;
      break;
    case 5:
      v <<= 2;
      break;
    case 6:
      v = ~v;
      break;
    case 7:
      v |= 64;
      break;
    default:
      v = 0;
  }
  out[threadIdx.x] = v;
}

KERNEL device_malloc(int* out) {
  int* p = static_cast<int*>(malloc(64 * sizeof(int)));
  for (int i = 0; i < 64; ++i) p[i] = i + threadIdx.x;
  int sum = 0;
  for (int i = 0; i < 64; ++i) sum += p[i];
  free(p);
  out[threadIdx.x] = sum;
}
