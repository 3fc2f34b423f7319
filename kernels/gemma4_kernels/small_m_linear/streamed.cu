// out = x @ weight.T for few rows of x, bfloat16, with a gate if asked for: each block streams its own rows of the
// weight through its ring, see streaming.cuh.
//
// A block has whole rows of the weight, as many as any other or one more, so that no sum is shared among blocks: the
// bits depend neither on the number of rows of x nor on where a block runs. streamed.py says what is defined, besides:
//   CO_RESIDENT   blocks of which a multiprocessor is to have room at a time
//   ROWS          8 or 16: the rows of x that are multiplied
//   HELD_CHUNKS   parts of the depth, of STAGE_DEPTH each, of which x is held in registers; 0: x is read part by part
//   TILES         with HELD_CHUNKS 0: tiles of a block
//   GATE          0: none; 1: the weight is a gate's rows and then its partner's; 2: times factor
//   EARLY         1: may start before the kernel ahead has ended; the weight is not what that one writes

#include "streaming.cuh"

constexpr int HELD = GATE == 1 ? TILE / 2 : TILE;  // columns of `out` that a tile makes
constexpr int COPIES = ROWS / 8;                   // 8 rows of x are one operand of the tensor cores

extern "C" __global__ void __launch_bounds__(THREADS + 32, CO_RESIDENT)
streamed_product_kernel(const u16* x, const u16* weight, u16* out, const u16* factor, long long x_stride,
                        long long weight_stride, long long out_stride, long long factor_stride, int rows, int columns,
                        int depth) {
  extern __shared__ __align__(128) unsigned char ring_memory[];
  __shared__ __align__(8) u64 filled[STAGES], emptied[STAGES];
  __shared__ float parts[2][WARPS][ROWS * TILE];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int begin = (int)((long long)blockIdx.x * columns / gridDim.x);
  const int end = (int)((long long)(blockIdx.x + 1) * columns / gridDim.x);
  const int tiles = (end - begin + HELD - 1) / HELD, chunks = (depth + STAGE_DEPTH - 1) / STAGE_DEPTH;
  const u32 memory = shared_address(ring_memory);

  if (thread == THREADS) begin_ring(filled, emptied);
  __syncthreads();
#if EARLY
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif

  if (warp == WARPS) {
    // Fills the ring, and waits for no kernel: none of a step writes weights.
    Filler filler(filled, emptied, memory);
    for (int number = 0, tile = 0, chunk = 0; number < tiles * chunks; number++) {
      const int first = begin + tile * HELD;
      filler.fill(weight, weight_stride, columns, depth, HELD, first, min(HELD, end - first), chunk);
      if (HELD_CHUNKS) {
        if (++chunk == chunks) chunk = 0, tile++;
      } else if (++tile == tiles) {
        tile = 0, chunk++;
      }
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
        if (at < STAGE_DEPTH && column < depth && row < rows) v = load_row(x + row * x_stride + column + quarter * 8);
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
