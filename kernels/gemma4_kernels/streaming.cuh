// What kernels share that stream weights through a ring of stages in shared memory: one warp fills it by bulk copies,
// the others multiply from it. What is defined ahead of it:
//   STAGE_DEPTH   columns of the weight in a stage, a multiple of 32
//   STAGES        stages of the ring
//   IN_FLIGHT     stages whose copies may be under way at a time. More of them only queue up, and whatever the other
//                 warps read has to wait behind them
//   WARPS         warps that multiply

#include "numbers.cuh"

constexpr int TILE = 8;                  // rows of the weight in a stage
constexpr int PITCH = STAGE_DEPTH * 2 + 64;  // bytes; the 64 keep two rows off each other's banks
constexpr int BLOCKS = (STAGE_DEPTH + 32 * WARPS - 1) / (32 * WARPS);  // of 32 columns, for each warp of a stage
constexpr int THREADS = 32 * WARPS;      // that multiply

__device__ __forceinline__ void barrier_begin(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred over;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 over, [%0], %1;\n@over bra OVER;\nbra AGAIN;\n"
      "OVER:\n}" ::"r"(barrier), "r"(parity) : "memory");
}

__device__ __forceinline__ void copy_row(u32 to, const void* from, u32 bytes, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}

__device__ __forceinline__ uint4 load_shared(u32 at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
}

// c [16, 8] += a [16, 16] times b [16, 8], as one warp holds them.
__device__ __forceinline__ void multiply_add(float (&c)[4], uint4 a, u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

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

// What a weight is read with: it is needed once in a step.
__device__ __forceinline__ u64 read_once() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// One warp's part of filling a ring. `number` counts the stages of a launch.
struct Filler {
  u64 *filled, *emptied;
  u32 memory;
  int lane;
  u64 policy;
  Ring ring;
  u32 number = 0;

  __device__ __forceinline__ Filler(u64* filled, u64* emptied, u32 memory, int lane)
      : filled(filled), emptied(emptied), memory(memory), lane(lane), policy(read_once()) {
    ring.parity = 1;
  }

  // Copies `left` rows of a tile of `held` columns of `out`, and as many of each partner `columns` below them.
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
      barrier_expect(barrier, bytes * left * (TILE / held));
    }
    __syncwarp();
    const int place = lane % held;
    if (lane < TILE && place < left) {
      const long long row = first + place + (long long)(lane / held) * columns;
      copy_row(memory + (ring.stage * TILE + lane) * PITCH, weight + row * stride + from, bytes, barrier, policy);
    }
    ring.next();
    number++;
  }
};
