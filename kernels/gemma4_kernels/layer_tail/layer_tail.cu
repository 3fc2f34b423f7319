// All of a dense decoder layer behind its attention, and the next layer's projection, for up to 8 rows in one launch:
// products whose weights stream through one ring, see streaming.cuh, without a pause between them.
//
// A block has whole rows of each weight, so that no sum is shared among blocks. Rows go from block to block through
// memory: each has all rows in registers behind a product and computes their norms itself. Where the
// weights leave time for it, blocks meet (`meet`); elsewhere the values say themselves that they are there: a pair of
// columns is NOT_YET until it is stored. All blocks have to run at once, so the launch is cooperative.
//
// Such launches in a row were faster, and a whole step slower, with: values that say that they are there everywhere, in
// two places that launches take in turn; more of a deep product's rows under way; the sums of three tiles added at once;
// and the next layer's first weights in the L2 cache while this one's last are multiplied. Such launches themselves were
// no faster with: two blocks that share the depth of a deep product; a second warp that fills; sums that two warps in
// turn add up while the others go on; and the weights of two norms in registers at a time. No rows of that are kept.
//
// kernel.py says what is defined, besides:
//   PROGRAMS   blocks
//   HIDDEN     width of the residual stream, a multiple of 32
//   PLE        width of per-layer inputs, a multiple of 32
//   TILES      tiles of HIDDEN columns of a block
//   EARLY      1: may start before the kernel ahead has ended; no weight is what that one writes

#include "streaming.cuh"

template <int DEPTH> constexpr int CHUNKS = (DEPTH + STAGE_DEPTH - 1) / STAGE_DEPTH;
constexpr bool WHOLE = BLOCKS * WARPS * 32 == STAGE_DEPTH;
constexpr int ROWS = 8;
constexpr u32 NOT_YET = 0xffffffffu;  // two NaNs that no rounding makes
constexpr int COPIES = 8;             // of the gated per-layer inputs, which are so narrow that all would read one line

enum { OUT_OF_ATTENTION, GATE_UP, DOWN, PLE_GATE, PLE_PROJECTION, NEXT_PROJECTION, WEIGHTS };
enum { POST_ATTENTION, PRE_FEED_FORWARD, POST_FEED_FORWARD, POST_PLE, NEXT_NORM, NORMS };

// layer_tail/kernel.py has the same.
struct Arguments {
  const u16 *attended, *residual, *ple, *scalar;
  const u16* weight[WEIGHTS];
  const u16* norm[NORMS];
  // NOT_YET when a launch begins: the first; once it has met: the others.
  u16 *attention_out, *mlp_out, *ple_gated, *ple_out;
  u16* gated;
  u16 *hidden, *normed, *projected;
  u32* arrivals;
  long long attended_stride, residual_stride, ple_stride;
  long long weight_stride[WEIGHTS];
  int rows, inner, wide, next_columns;
  float eps;
};

// Part of eight rows that a thread holds: 8 columns of one row in each block of 32.
template <int DEPTH> using Part = uint4[CHUNKS<DEPTH>][BLOCKS];

// Of memory that other blocks write while this kernel runs.
__device__ __forceinline__ uint4 load_fresh(const u16* at) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
  return v;
}

__device__ __forceinline__ void store_fresh(u16* at, u32 two) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(two) : "memory");
}

__device__ __forceinline__ bool incomplete(const uint4& v) { return max(max(v.x, v.y), max(v.z, v.w)) == NOT_YET; }

__device__ __forceinline__ u32 times_two(u32 a, u32 b) {
  u32 made;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(made) : "r"(a), "r"(b));
  return made;
}

// Where a block's columns begin: it has whole pairs, as many as any other or one pair more.
__device__ __forceinline__ int begin_of(int columns, int block) {
  return 2 * (int)((u32)block * (u32)(columns / 2) / PROGRAMS);
}

struct Shared {
  u64 filled[STAGES], emptied[STAGES];
  float parts[2][WARPS][ROWS * TILE];
  float squares[2][WARPS][ROWS];
};

using Squares = const float (*)[ROWS];

struct Multiplier {
  const Arguments& a;
  Shared& shared;
  int thread, warp, group, quarter;
  u32 mine, before = 0;
  Ring ring;
  int stored = 0, squared = 0;

  // As in streamed.cu, the 16 bytes of a weight are operand a as they are, of which each half wants its own columns.
  __device__ __forceinline__ Multiplier(const Arguments& a, Shared& shared, u32 memory)
      : a(a), shared(shared), thread(threadIdx.x), warp(threadIdx.x / 32), group(threadIdx.x % 32 / 4),
        quarter(threadIdx.x % 4), mine(memory + group * PITCH + warp * 64 + quarter * 16) {}

  __device__ __forceinline__ void together() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

  // Where a block of 32 columns begins in its stage.
  __device__ __forceinline__ int at(int block) { return (block * WARPS + warp) * 32; }

  __device__ __forceinline__ bool inside(int block, int chunk, int depth) {
    return (WHOLE || at(block) < STAGE_DEPTH) && chunk * STAGE_DEPTH + at(block) < depth;
  }

  template <int DEPTH> __device__ __forceinline__ bool inside(int block, int chunk) {
    return (WHOLE && DEPTH % STAGE_DEPTH == 0) || inside(block, chunk, DEPTH);
  }

  __device__ __forceinline__ uint4 load_block(const u16* from, long long stride, int block, int chunk) {
    return load_fresh(from + group * stride + chunk * STAGE_DEPTH + at(block) + quarter * 8);
  }

  template <int DEPTH> __device__ __forceinline__ void load(Part<DEPTH>& v, const u16* from, long long stride) {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS<DEPTH>; chunk++)
#pragma unroll
      for (int block = 0; block < BLOCKS; block++) {
        v[chunk][block] = {0, 0, 0, 0};
        if (inside<DEPTH>(block, chunk) && group < a.rows) v[chunk][block] = load_block(from, stride, block, chunk);
      }
  }

  __device__ __forceinline__ void load_chunk(uint4 (&v)[BLOCKS], const u16* from, long long stride, int depth,
                                             int chunk) {
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
      v[block] = {0, 0, 0, 0};
      if (inside(block, chunk, depth) && group < a.rows) v[block] = load_block(from, stride, block, chunk);
    }
  }

  // Waits for rows that all blocks store. One thread asks for one place of them until it is there, a different one in
  // each block, because whoever asks is in the way of who stores.
  template <int DEPTH> __device__ __forceinline__ void collect(Part<DEPTH>& v, const u16* from) {
    if (thread == 0)
      while (incomplete(load_fresh(from + DEPTH / 8 * (blockIdx.x % 8) / 8 * 8))) asm volatile("nanosleep.u32 20;");
    together();
    bool missing;
    do {
      load<DEPTH>(v, from, DEPTH);
      missing = false;
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS<DEPTH>; chunk++)
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) missing |= incomplete(v[chunk][block]);
      if (missing) asm volatile("nanosleep.u32 60;");
    } while (__any_sync(0xffffffffu, missing));
  }

  __device__ __forceinline__ void load_norm(Part<HIDDEN>& v, const u16* weight) {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS<HIDDEN>; chunk++)
#pragma unroll
      for (int block = 0; block < BLOCKS; block++) {
        v[chunk][block] = {0, 0, 0, 0};
        if (inside<HIDDEN>(block, chunk))
          v[chunk][block] = load_weight(weight + chunk * STAGE_DEPTH + at(block) + quarter * 8);
      }
  }

  // Returns where each warp leaves its part of the rows' sums of squares; they are there after `together`.
  __device__ __forceinline__ Squares square(const Part<HIDDEN>& v) {
    // The diagonal of v times itself, in two sums for each half of an operand.
    float first[2][4] = {}, second[2][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS<HIDDEN>; chunk++)
#pragma unroll
      for (int block = 0; block < BLOCKS; block++) {
        const uint4& one = v[chunk][block];
        multiply_add(first[block % 2], one, one.x, one.z);
        multiply_add(second[block % 2], one, one.y, one.w);
      }
    float(*squares)[ROWS] = shared.squares[squared++ % 2];
    if (group / 2 == quarter) {
      const int odd = group % 2;
      squares[warp][group] = odd ? first[0][1] + first[1][1] + second[0][3] + second[1][3]
                                 : first[0][0] + first[1][0] + second[0][2] + second[1][2];
    }
    return squares;
  }

  __device__ __forceinline__ float inverse_rms(Squares squares, int row) {
    float total = 0;
#pragma unroll
    for (int other = 0; other < WARPS; other++) total += squares[other][row];
    return rsqrtf(total * (1.0f / HIDDEN) + a.eps);
  }

  // v = v * weight, rounded.
  __device__ __forceinline__ void times(Part<HIDDEN>& v, const Part<HIDDEN>& weight) {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS<HIDDEN>; chunk++)
#pragma unroll
      for (int block = 0; block < BLOCKS; block++)
#pragma unroll
        for (int number = 0; number < 4; number++) {
          u32& one = word(v[chunk][block], number);
          one = times_two(one, word(weight[chunk][block], number));
        }
  }

  // total = (v * inverse + total) * factor, rounded once.
  template <bool SCALED>
  __device__ __forceinline__ void add(Part<HIDDEN>& total, const Part<HIDDEN>& v, float inverse, float factor) {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS<HIDDEN>; chunk++)
#pragma unroll
      for (int block = 0; block < BLOCKS; block++)
#pragma unroll
        for (int number = 0; number < 4; number++) {
          const u32 x = word(v[chunk][block], number);
          u32& sum = word(total[chunk][block], number);
          float first = low(x) * inverse + low(sum), second = high(x) * inverse + high(sum);
          if (SCALED) first *= factor, second *= factor;
          sum = packed(first, second);
        }
  }

  __device__ __forceinline__ void copy(Part<HIDDEN>& to, const Part<HIDDEN>& from) {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS<HIDDEN>; chunk++)
#pragma unroll
      for (int block = 0; block < BLOCKS; block++) to[chunk][block] = from[chunk][block];
  }

  __device__ __forceinline__ void add_stage(float (&total)[2][4], const uint4 (&held)[BLOCKS], int depth, int chunk,
                                            bool all) {
    barrier_wait(shared_address(&shared.filled[ring.stage]), ring.parity);
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
      if (all || inside(block, chunk, depth)) {
        const uint4 w = load_shared(mine + ring.stage * (TILE * PITCH) + block * (WARPS * 64));
        multiply_add(total[0], w, held[block].x, held[block].z);
        multiply_add(total[1], w, held[block].y, held[block].w);
      }
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(&shared.emptied[ring.stage]));
    ring.next();
  }

  // GATE 0: the product; 1: of halves; 2: times the per-layer input. With squares, each row times its 1 / rms first,
  // which a thread asks for once: `inverse` is 0 before.
  template <int GATE>
  __device__ __forceinline__ void store_tile(const float (&total)[2][4], int first, int end, u16* out, int columns,
                                             Squares squares, float& inverse) {
    constexpr int HELD = GATE == 1 ? TILE / 2 : TILE;
    float(*part)[ROWS * TILE] = shared.parts[stored++ % 2];
    float* cell = part[warp] + 2 * quarter * TILE + group;
    cell[0] = total[0][0] + total[1][2];
    cell[TILE] = total[0][1] + total[1][3];
    together();
    if (thread >= ROWS * TILE) return;
    const int row = thread / TILE, place = thread % TILE, column = first + place;
    if (squares != nullptr && inverse == 0) inverse = inverse_rms(squares, row);
    float made = 0;
#pragma unroll
    for (int other = 0; other < WARPS; other++) made += part[other][thread];
    if (squares != nullptr) made *= inverse;
    const bool ours = place < HELD && column < end && row < a.rows;
    if (GATE == 1) {
      const float partner = __shfl_down_sync(0xffffffffu, made, HELD);
      made = gelu_tanh(widened(narrowed(made))) * widened(narrowed(partner));
    }
    if (GATE == 2 && ours) made = gelu_tanh(widened(narrowed(made))) * widened(a.ple[row * a.ple_stride + column]);
    const float other = __shfl_down_sync(0xffffffffu, made, 1);
    if (ours && place % 2 == 0)
#pragma unroll
      for (int copy = 0; copy < (GATE == 2 ? COPIES : 1); copy++)
        store_fresh(out + (copy * ROWS + row) * (long long)columns + column, packed(made, other));
  }

  template <int DEPTH, int GATE>
  __device__ __forceinline__ void product(const Part<DEPTH>& held, int columns, u16* out, Squares squares) {
    constexpr int HELD = GATE == 1 ? TILE / 2 : TILE;
    const int end = begin_of(columns, blockIdx.x + 1);
    float inverse = 0;
    for (int first = begin_of(columns, blockIdx.x); first < end; first += HELD) {
      float total[2][4] = {};
#pragma unroll
      for (int chunk = 0; chunk < CHUNKS<DEPTH>; chunk++)
        add_stage(total, held[chunk], DEPTH, chunk, WHOLE && DEPTH % STAGE_DEPTH == 0);
      store_tile<GATE>(total, first, end, out, columns, squares, inverse);
    }
  }

  // HIDDEN columns of a depth that no registers hold: x is read part by part, one ahead.
  __device__ __forceinline__ void deep_product(const u16* x, long long stride, int depth, u16* out) {
    const int begin = begin_of(HIDDEN, blockIdx.x), end = begin_of(HIDDEN, blockIdx.x + 1);
    const int tiles = (end - begin + TILE - 1) / TILE, chunks = (depth + STAGE_DEPTH - 1) / STAGE_DEPTH;
    float total[TILES][2][4] = {};
    uint4 held[2][BLOCKS];
    load_chunk(held[0], x, stride, depth, 0);
    for (int from = 0; from < chunks; from += 2) {
#pragma unroll
      for (int now = 0; now < 2; now++) {
        const int chunk = from + now;
        if (chunk < chunks) {
          load_chunk(held[1 - now], x, stride, depth, chunk + 1);
#pragma unroll
          for (int tile = 0; tile < TILES; tile++)
            if (tile < tiles) add_stage(total[tile], held[now], depth, chunk, false);
        }
      }
    }
    float none = 0;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
      if (tile < tiles) store_tile<0>(total[tile], begin + tile * TILE, end, out, HIDDEN, nullptr, none);
  }

  // This block's own columns are NOT_YET again.
  __device__ __forceinline__ void forget(u16* rows, int columns) {
    const int begin = begin_of(columns, blockIdx.x), pairs = (begin_of(columns, blockIdx.x + 1) - begin) / 2;
    if (thread / 16 >= a.rows) return;
    for (int pair = thread % 16; pair < pairs; pair += 16)
      store_fresh(rows + thread / 16 * columns + begin + pair * 2, NOT_YET);
  }

  // Asks how the blocks stand, before any of them can have come to `meet`: there, an answer to wait for costs a while.
  __device__ __forceinline__ void ask() {
    if (thread == 0) asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(before) : "l"(a.arrivals) : "memory");
  }

  // Waits until all blocks have come here. What they stored before is there then.
  __device__ __forceinline__ void meet() {
    together();
    if (thread == 0) {
      // The highest bit turns over when all have come, and the others are as they were.
      const u32 step = blockIdx.x == 0 ? 0x80000000u - (PROGRAMS - 1) : 1u;
      u32 now;
      asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(a.arrivals), "r"(step) : "memory");
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(a.arrivals) : "memory");
      } while (((now ^ before) >> 31) == 0);
    }
    together();
  }
};

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1) layer_tail_kernel(const __grid_constant__ Arguments a) {
  static_assert(THREADS >= 16 * ROWS, "forget has 16 threads for a row");
  extern __shared__ __align__(128) unsigned char ring_memory[];
  __shared__ __align__(16) Shared shared;
  const int thread = threadIdx.x, warp = thread / 32;
  const u32 memory = shared_address(ring_memory);
  if (thread == THREADS) begin_ring(shared.filled, shared.emptied);
  __syncthreads();
#if EARLY
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif

  if (warp == WARPS) {
    // Fills the ring, and waits for no kernel: none of a step writes weights.
    Filler filler(shared.filled, shared.emptied, memory);
    for (int which = 0; which < WEIGHTS; which++) {
      const int columns = which == GATE_UP           ? a.wide
                          : which == PLE_GATE        ? PLE
                          : which == NEXT_PROJECTION ? a.next_columns
                                                     : HIDDEN;
      const int depth = which == OUT_OF_ATTENTION ? a.inner
                        : which == DOWN           ? a.wide
                        : which == PLE_PROJECTION ? PLE
                                                  : HIDDEN;
      const int held = which == GATE_UP ? TILE / 2 : TILE;
      const int begin = begin_of(columns, blockIdx.x), end = begin_of(columns, blockIdx.x + 1);
      const int tiles = (end - begin + held - 1) / held, chunks = (depth + STAGE_DEPTH - 1) / STAGE_DEPTH;
      const bool by_chunk = which == OUT_OF_ATTENTION || which == DOWN;
      for (int number = 0, tile = 0, chunk = 0; number < tiles * chunks; number++) {
        const int first = begin + tile * held;
        const int left = min(held, end - first);
        filler.fill(a.weight[which], a.weight_stride[which], columns, depth, held, first, left, chunk);
        if (by_chunk) {
          if (++tile == tiles) tile = 0, chunk++;
        } else if (++chunk == chunks) {
          chunk = 0, tile++;
        }
      }
    }
    return;
  }

  Multiplier m(a, shared, memory);
  Part<HIDDEN> residual, x, weight;
#if EARLY
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  m.ask();
  m.deep_product(a.attended, a.attended_stride, a.inner, a.attention_out);
  m.load_norm(weight, a.norm[POST_ATTENTION]);
  m.load<HIDDEN>(residual, a.residual, a.residual_stride);
  // Who reads these has met first.
  m.forget(a.mlp_out, HIDDEN);
  for (int copy = 0; copy < COPIES; copy++) m.forget(a.ple_gated + copy * ROWS * PLE, PLE);
  m.forget(a.ple_out, HIDDEN);
  m.collect<HIDDEN>(x, a.attention_out);
  Squares squares = m.square(x);
  m.times(x, weight);
  m.load_norm(weight, a.norm[PRE_FEED_FORWARD]);
  m.together();
  m.add<false>(residual, x, m.inverse_rms(squares, m.group), 0);
  squares = m.square(residual);
  m.copy(x, residual);
  m.times(x, weight);
  m.product<HIDDEN, 1>(x, a.wide, a.gated, squares);
  m.meet();
  m.deep_product(a.gated, a.wide, a.wide, a.mlp_out);
  // All have read it.
  m.forget(a.attention_out, HIDDEN);
  m.load_norm(weight, a.norm[POST_FEED_FORWARD]);
  m.collect<HIDDEN>(x, a.mlp_out);
  squares = m.square(x);
  m.times(x, weight);
  m.together();
  m.add<false>(residual, x, m.inverse_rms(squares, m.group), 0);
  m.product<HIDDEN, 2>(residual, PLE, a.ple_gated, nullptr);
  {
    Part<PLE> gated;
    m.collect<PLE>(gated, a.ple_gated + blockIdx.x % COPIES * (ROWS * PLE));
    m.product<PLE, 0>(gated, HIDDEN, a.ple_out, nullptr);
  }
  m.load_norm(weight, a.norm[POST_PLE]);
  const float factor = widened(*a.scalar);
  m.collect<HIDDEN>(x, a.ple_out);
  squares = m.square(x);
  m.times(x, weight);
  m.load_norm(weight, a.norm[NEXT_NORM]);
  m.together();
  m.add<true>(residual, x, m.inverse_rms(squares, m.group), factor);
  squares = m.square(residual);
  m.copy(x, residual);
  m.times(x, weight);
  if (a.next_columns) m.product<HIDDEN, 0>(x, a.next_columns, a.projected, squares);

  // Each block stores a few columns of what they all have.
  m.together();
  const float inverse = m.inverse_rms(squares, m.group);
#pragma unroll
  for (int chunk = 0; chunk < CHUNKS<HIDDEN>; chunk++)
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
      const int column = chunk * STAGE_DEPTH + m.at(block);
      if (m.inside<HIDDEN>(block, chunk) && m.group < a.rows && column / 32 % PROGRAMS == blockIdx.x) {
        const long long place = m.group * HIDDEN + column + m.quarter * 8;
        uint4& own = residual[chunk][block];
        *(uint4*)(a.hidden + place) = own;
#pragma unroll
        for (int number = 0; number < 4; number++) {
          u32& one = word(own, number);
          const u32 scale = word(weight[chunk][block], number);
          one = packed(low(one) * inverse * low(scale), high(one) * inverse * high(scale));
        }
        *(uint4*)(a.normed + place) = own;
      }
    }
}
