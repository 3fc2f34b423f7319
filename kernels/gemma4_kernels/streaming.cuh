// What kernels share that stream weights through a ring of stages in shared memory: one warp fills it by bulk copies,
// the others multiply from it. What is defined ahead of it:
//   STAGE_DEPTH   columns of the weight in a stage, a multiple of 32
//   STAGES        stages of the ring
//   IN_FLIGHT     stages whose copies may be under way at a time. More of them only queue up, and whatever the other
//                 warps read has to wait behind them
//   WARPS         warps that multiply
//
// A step of E4B with 4 and 8 requests was slower with: 5 to 30 MB of the weights behind an attention fetched into the L2
// cache by that attention; and rings so small that the next product's stands beside them. No rows of that are kept.

#include "shared.cuh"

constexpr int TILE = 8;                  // rows of the weight in a stage
constexpr int PITCH = STAGE_DEPTH * 2 + 64;  // bytes; the 64 keep two rows off each other's banks
constexpr int BLOCKS = (STAGE_DEPTH + 32 * WARPS - 1) / (32 * WARPS);  // of 32 columns, for each warp of a stage
constexpr int THREADS = 32 * WARPS;      // that multiply

// 1 + tanh(u) = 2 sigmoid(2 u), without the cancellation.
__device__ __forceinline__ float gelu_tanh(float v) {
  const float inner = 0.7978845608028654f * (v + 0.044715f * (v * v * v));
  return v / (1.0f + __expf(-2.0f * inner));
}

struct Ring {
  u32 stage = 0, parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Both barriers of each stage: the warp that fills arrives at one, each warp that multiplies at the other.
__device__ __forceinline__ void begin_ring(u64* filled, u64* emptied) {
  for (int stage = 0; stage < STAGES; stage++) {
    barrier_begin(shared_address(&filled[stage]), 1);
    barrier_begin(shared_address(&emptied[stage]), WARPS);
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// The warp that fills a ring. `number` counts the stages of a launch.
struct Filler {
  u64 *filled, *emptied;
  u32 memory;
  int lane;
  u64 policy;
  Ring ring;
  u32 number = 0;

  __device__ __forceinline__ Filler(u64* filled, u64* emptied, u32 memory)
      : filled(filled), emptied(emptied), memory(memory), lane(threadIdx.x % 32), policy(read_once()) {
    ring.parity = 1;
  }

  // Copies `left` rows of a tile of `held` columns of `out`, TILE or half of it, and as many of each partner `columns`
  // below them.
  __device__ __forceinline__ void fill(const u16* weight, long long stride, int columns, int depth, int held, int first,
                                       int left, int chunk) {
    const int from = chunk * STAGE_DEPTH, bytes = 2 * min(STAGE_DEPTH, depth - from);
    const u32 barrier = shared_address(&filled[ring.stage]);
    if (lane == 0) {
      barrier_wait(shared_address(&emptied[ring.stage]), ring.parity);
      if (IN_FLIGHT < STAGES && number >= IN_FLIGHT) {
        const u32 earlier = number - IN_FLIGHT;
        barrier_wait(shared_address(&filled[earlier % STAGES]), earlier / STAGES & 1);
      }
      barrier_expect(barrier, held == TILE ? bytes * left : 2 * bytes * left);
    }
    __syncwarp();
    // No division by what is not known ahead: it would take as long as a copy.
    const int place = lane & (held - 1), partner = held == TILE ? 0 : lane / (TILE / 2);
    if (lane < TILE && place < left) {
      const long long row = first + place + (long long)partner * columns;
      copy_row(memory + (ring.stage * TILE + lane) * PITCH, weight + row * stride + from, bytes, barrier, policy);
    }
    ring.next();
    number++;
  }
};
