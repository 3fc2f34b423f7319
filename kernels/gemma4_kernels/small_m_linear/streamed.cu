// out = x @ weight.T for few rows of x, bfloat16, with a gate if asked for: each block streams its own rows of the
// weight through a ring of stages in shared memory, which one warp fills by bulk copies and the others multiply from.
//
// A block has whole rows of the weight, as many as any other or one more, so that no sum is shared among blocks: the
// bits depend neither on the number of rows of x nor on where a block runs. streamed.py says what is defined:
//   STAGE_DEPTH   columns of the weight in a stage, a multiple of 32
//   STAGES        stages of the ring
//   IN_FLIGHT     stages whose copies may be under way at a time. More of them only queue up, and whatever the other
//                 warps read has to wait behind them
//   WARPS         warps that multiply
//   CO_RESIDENT   blocks of which a multiprocessor is to have room at a time
//   ROWS          8 or 16: the rows of x that are multiplied
//   HELD_CHUNKS   parts of the depth, of STAGE_DEPTH each, of which x is held in registers; 0: x is read part by part
//   TILES         with HELD_CHUNKS 0: tiles of a block
//   GATE          0: none; 1: the weight is a gate's rows and then its partner's; 2: times factor
//   EARLY         1: may start before the kernel ahead has ended; the weight is not what that one writes

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr int TILE = 8;                         // rows of the weight in a stage
constexpr int HELD = GATE == 1 ? TILE / 2 : TILE;  // columns of `out` that they make
constexpr int PITCH = STAGE_DEPTH * 2 + 64;     // bytes; the 64 keep two rows off each other's banks
constexpr int COPIES = ROWS / 8;                // 8 rows of x are one operand of the tensor cores
constexpr int BLOCKS = (STAGE_DEPTH + 32 * WARPS - 1) / (32 * WARPS);  // of 32 columns, for each warp of a stage
constexpr int THREADS = 32 * WARPS;             // that multiply

__device__ __forceinline__ u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

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

__device__ __forceinline__ u16 narrowed(float v) {
  u16 made;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(made) : "f"(v));
  return made;
}

__device__ __forceinline__ float widened(u16 v) { return __uint_as_float((u32)v << 16); }

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

extern "C" __global__ void __launch_bounds__(THREADS + 32, CO_RESIDENT)
streamed_product_kernel(const u16* __restrict__ x, const u16* __restrict__ weight, u16* __restrict__ out,
                        const u16* factor, long long x_stride, long long weight_stride, long long out_stride,
                        long long factor_stride, int rows, int columns, int depth) {
  extern __shared__ __align__(128) unsigned char ring_memory[];
  __shared__ __align__(8) u64 filled[STAGES], emptied[STAGES];
  __shared__ float parts[2][WARPS][ROWS * TILE];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int begin = (int)((long long)blockIdx.x * columns / gridDim.x);
  const int end = (int)((long long)(blockIdx.x + 1) * columns / gridDim.x);
  const int tiles = (end - begin + HELD - 1) / HELD, chunks = (depth + STAGE_DEPTH - 1) / STAGE_DEPTH;
  const u32 memory = shared_address(ring_memory);

  if (thread == THREADS) {
    for (int stage = 0; stage < STAGES; stage++) {
      barrier_begin(shared_address(&filled[stage]), 1);
      barrier_begin(shared_address(&emptied[stage]), WARPS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
#if EARLY
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif

  if (warp == WARPS) {
    // Fills the ring, and waits for no kernel: none of a step writes weights.
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    Ring ring;
    ring.parity = 1;
    for (int number = 0; number < tiles * chunks; number++) {
      const int tile = HELD_CHUNKS ? number / chunks : number % tiles;
      const int chunk = HELD_CHUNKS ? number % chunks : number / tiles;
      const int first = begin + tile * HELD, left = min(HELD, end - first);
      const int from = chunk * STAGE_DEPTH, bytes = 2 * min(STAGE_DEPTH, depth - from);
      const u32 barrier = shared_address(&filled[ring.stage]);
      if (lane == 0) {
        barrier_wait(shared_address(&emptied[ring.stage]), ring.parity);
        if (IN_FLIGHT < STAGES && number >= IN_FLIGHT) {
          const int earlier = number - IN_FLIGHT;
          barrier_wait(shared_address(&filled[earlier % STAGES]), earlier / STAGES & 1);
        }
        barrier_expect(barrier, bytes * left * (TILE / HELD));
      }
      __syncwarp();
      const int place = lane % HELD;
      if (lane < TILE && place < left) {
        const long long row = first + place + (long long)(lane / HELD) * columns;
        copy_row(memory + (ring.stage * TILE + lane) * PITCH, weight + row * weight_stride + from, bytes, barrier, policy);
      }
      ring.next();
    }
    return;
  }

#if EARLY
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  // A thread holds 8 columns of a row of x and, of a stage, the same columns of a row of the weight: group is the row.
  // Which column stands where in an operand of the tensor cores is free, as long as both have it in the same place. So
  // the 16 bytes of a weight are operand a as they are: its rows 0 to 7 are columns 0, 1, 4, 5 and its rows 8 to 15
  // columns 2, 3, 6, 7 of the same row of the weight. Each half wants its own columns of x.
  const int group = lane / 4, quarter = lane % 4;
  const u32 mine = memory + group * PITCH + warp * 64 + quarter * 16;
  Ring ring;

  auto load_x = [&](uint4 (&held)[BLOCKS][COPIES], int chunk) {
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
#pragma unroll
      for (int copy = 0; copy < COPIES; copy++) {
        const int at = (block * WARPS + warp) * 32, column = chunk * STAGE_DEPTH + at, row = copy * 8 + group;
        uint4 v = {0, 0, 0, 0};
        if (at < STAGE_DEPTH && column < depth && row < rows) v = *(const uint4*)(x + row * x_stride + column + quarter * 8);
        held[block][copy] = {v.x, v.z, v.y, v.w};
      }
  };
  auto add_stage = [&](float (&total)[2 * COPIES][4], const uint4 (&held)[BLOCKS][COPIES], int chunk) {
    barrier_wait(shared_address(&filled[ring.stage]), ring.parity);
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
      const int at = (block * WARPS + warp) * 32;
      if (at < STAGE_DEPTH && chunk * STAGE_DEPTH + at < depth) {
        const uint4 w = load_shared(mine + ring.stage * (TILE * PITCH) + block * (WARPS * 64));
#pragma unroll
        for (int copy = 0; copy < COPIES; copy++) {
          multiply_add(total[2 * copy], w, held[block][copy].x, held[block][copy].y);
          multiply_add(total[2 * copy + 1], w, held[block][copy].z, held[block][copy].w);
        }
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&emptied[ring.stage]));
    ring.next();
  };
  auto store_tile = [&](const float (&total)[2 * COPIES][4], int tile) {
    float(*part)[ROWS * TILE] = parts[tile % 2];
#pragma unroll
    for (int copy = 0; copy < COPIES; copy++) {
      float* cell = part[warp] + (copy * 8 + 2 * quarter) * TILE + group;
      cell[0] = total[2 * copy][0] + total[2 * copy + 1][2];
      cell[TILE] = total[2 * copy][1] + total[2 * copy + 1][3];
    }
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
    for (int cell = thread; cell < ROWS * TILE; cell += THREADS) {
      float sum = 0;
#pragma unroll
      for (int other = 0; other < WARPS; other++) sum += part[other][cell];
      const int row = cell / TILE, place = cell % TILE, column = begin + tile * HELD + place;
      float made = sum;
      if (GATE == 1) {
        const float partner = __shfl_down_sync(0xffffffffu, sum, HELD);
        made = gelu_tanh(widened(narrowed(sum))) * widened(narrowed(partner));
      }
      if (place < HELD && column < end && row < rows) {
        if (GATE == 2) made = gelu_tanh(widened(narrowed(sum))) * widened(factor[row * factor_stride + column]);
        out[row * out_stride + column] = narrowed(made);
      }
    }
  };

#if HELD_CHUNKS
  uint4 held[HELD_CHUNKS][BLOCKS][COPIES];
#pragma unroll
  for (int chunk = 0; chunk < HELD_CHUNKS; chunk++) load_x(held[chunk], chunk);
  for (int tile = 0; tile < tiles; tile++) {
    float total[2 * COPIES][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < HELD_CHUNKS; chunk++) add_stage(total, held[chunk], chunk);
    store_tile(total, tile);
  }
#else
  float total[TILES][2 * COPIES][4] = {};
  uint4 now[BLOCKS][COPIES], next[BLOCKS][COPIES];
  load_x(now, 0);
  for (int chunk = 0; chunk < chunks; chunk++) {
    load_x(next, chunk + 1);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
      if (tile < tiles) add_stage(total[tile], now, chunk);
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
#pragma unroll
      for (int copy = 0; copy < COPIES; copy++) now[block][copy] = next[block][copy];
  }
#pragma unroll
  for (int tile = 0; tile < TILES; tile++)
    if (tile < tiles) store_tile(total[tile], tile);
#endif
}
