// The attention of one query per request over few slots, with what a layer does ahead of it, in one launch of clusters:
// PARTS blocks share a request's slots for up to 8 query heads of one key head, and add up in each other's memory.
// Many slots are shared among several clusters; the last of them adds up what they all left in memory.
//
// Each warp has 256 columns of SLOTS slots at a time: of wider heads, two warps have a half each, and add up their
// scores. Keys and values of the first of them are under way before the inputs are there,
// keys to registers and values to shared memory: earlier steps stored them. The newest slot is not among them: whoever
// has it takes what it has just made, or reads it behind the wait. Sums are in an order that depends on the number of
// slots alone.
// clustered.py says what is defined:
//   WIDTH            of a head: 256 or 512
//   PARTS            blocks of a cluster
//   TEAMS            clusters that may share a request's slots
//   SLOTS            of a warp at a time: 8 or 16
//   HEADS            query heads of a block: 1, 2, 4 or 8
//   GROUP            query heads of a key head
//   OWN_KEYS         1: new keys and values are made and stored here; 0: another layer has
//   LONG_...         1: int64, 0: int32, of each of the lists
//   TABLE_FP32       1: the table of angles is fp32; 0: bf16
//   EARLY            1: may start before the kernel ahead has ended

#include "shared.cuh"

constexpr int OWN = 256, SIDES = WIDTH / OWN, HALF = WIDTH / 2;  // columns of a warp, and warps that share a slot
constexpr int WARPS = 8, CREWS = WARPS / SIDES, ROUND = CREWS * SLOTS;
// A block has ROUND slots at a time; another cluster helps where the blocks of one have more.
constexpr int TILES = SLOTS / 8, BLOCKS = OWN / 32;  // of slots and of columns, as a warp multiplies them
// Rows in shared memory are apart by more than they are wide, to keep eight of them off each other's banks.
constexpr int PITCH = OWN * 2 + 16, QUERY_PITCH = WIDTH * 2 + 16, APART = OWN + 8;  // bytes of bf16; columns of fp32
constexpr float LOG2_E = 1.4426950408889634f, NOTHING = -3.402823466e38f;

// clustered.py has the same.
struct Arguments {
  const u16* q;
  u16 *keys, *values, *out;
  const void *starts, *slots, *positions, *places;
  const u16 *q_weight, *k_weight, *new_keys, *new_values;
  const void* table;
  // With several TEAMS: fp32 sums and extremes that clusters leave for the last, and counters of 0 before and after.
  float* sums;
  float2* extremes;
  u32* counters;
  long long q_stride, q_head_stride, key_stride, key_head_stride, value_stride, value_head_stride;
  long long out_stride, out_head_stride, new_key_stride, new_value_stride;
  int kv_heads;
  float scaling, eps;
};

template <int LONG> __device__ __forceinline__ long long listed(const void* list, long long number) {
  return LONG ? ((const long long*)list)[number] : (long long)((const int*)list)[number];
}

__device__ __forceinline__ void widen(float (&to)[8], const uint4& v) {
#pragma unroll
  for (int number = 0; number < 4; number++) {
    to[2 * number] = low(word(v, number));
    to[2 * number + 1] = high(word(v, number));
  }
}

__device__ __forceinline__ uint4 narrow(const float (&v)[8]) {
  return {packed(v[0], v[1]), packed(v[2], v[3]), packed(v[4], v[5]), packed(v[6], v[7])};
}

// Of a head that a warp holds, 8 columns of each 256 a thread.
using Head = float[SIDES][8];

__device__ __forceinline__ void read_angles(float (&to)[8], const void* table, long long at) {
  if (TABLE_FP32) {
    const float4* from = (const float4*)((const float*)table + at);
#pragma unroll
    for (int number = 0; number < 2; number++) {
      const float4 v = from[number];
      to[4 * number] = v.x, to[4 * number + 1] = v.y, to[4 * number + 2] = v.z, to[4 * number + 3] = v.w;
    }
  } else {
    widen(to, load_weight((const u16*)table + at));
  }
}

struct Front {
  float cos[8], sin[8];

  __device__ __forceinline__ void read(const Arguments& a, long long position, int lane) {
    const long long at = position * WIDTH + lane * 8 % HALF;
    read_angles(cos, a.table, at);
    read_angles(sin, a.table, at + HALF);
  }

  // The other half of a head's columns is in the same thread, or half a warp away.
  __device__ __forceinline__ void turn(Head& x, int lane) const {
#pragma unroll
    for (int number = 0; number < 8; number++) {
      if (SIDES == 2) {
        const float first = x[0][number], second = x[SIDES - 1][number];
        x[0][number] = first * cos[number] + second * -sin[number];
        x[SIDES - 1][number] = second * cos[number] + first * sin[number];
      } else {
        const float partner = __shfl_xor_sync(0xffffffffu, x[0][number], 16);
        x[0][number] = x[0][number] * cos[number] + partner * (lane < 16 ? -sin[number] : sin[number]);
      }
    }
  }
};

__device__ __forceinline__ void norm(Head& x, float eps) {
  float total = 0;
#pragma unroll
  for (int side = 0; side < SIDES; side++)
#pragma unroll
    for (int number = 0; number < 8; number++) total += x[side][number] * x[side][number];
#pragma unroll
  for (int apart = 16; apart; apart /= 2) total += __shfl_xor_sync(0xffffffffu, total, apart);
  const float inverse = rsqrtf(total * (1.0f / WIDTH) + eps);
#pragma unroll
  for (int side = 0; side < SIDES; side++)
#pragma unroll
    for (int number = 0; number < 8; number++) x[side][number] *= inverse;
}

__device__ __forceinline__ void times(float (&x)[8], const uint4& weight) {
  float w[8];
  widen(w, weight);
#pragma unroll
  for (int number = 0; number < 8; number++) x[number] *= w[number];
}

// Of c [16, 8] += a [16, 16] times b [16, 8] the upper half: that of a's rows 8..15 is zero.
__device__ __forceinline__ void multiply_add(float (&c)[2], u32 a0, u32 a2, u32 b0, u32 b1) {
  float none, nothing;
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %8, %5, %8}, {%6, %7}, "
      "{%0, %1, %9, %9};"
      : "+f"(c[0]), "+f"(c[1]), "=f"(none), "=f"(nothing)
      : "r"(a0), "r"(a2), "r"(b0), "r"(b1), "r"(0u), "f"(0.0f));
}

// Four blocks of 8 rows by 8 columns, turned; each 8 threads give one's rows.
__device__ __forceinline__ uint4 load_turned(u32 row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(row) : "memory");
  return v;
}

__device__ __forceinline__ void store_shared(u32 at, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ __forceinline__ void all_of_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ u32 of_block(u32 address, int block) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}

__device__ __forceinline__ float2 load_two(u32 address) {
  float2 v;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}

// Of memory that other blocks of this launch wrote.
__device__ __forceinline__ float2 load_fresh(const void* at) {
  float2 v;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(at) : "memory");
  return v;
}

// Both warps of a crew come here.
__device__ __forceinline__ void both_sides(int crew) {
  asm volatile("bar.sync %0, 64;" ::"r"(crew + 1) : "memory");
}

extern "C" __global__ void __cluster_dims__(PARTS, 1, 1) __launch_bounds__(32 * WARPS, 1)
clustered_attention_kernel(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(128) unsigned char memory[];  // values, and behind them the warps' sums
  __shared__ __align__(16) unsigned char queries[HEADS * QUERY_PITCH];
  __shared__ float2 extremes[WARPS][HEADS];
  __shared__ __align__(8) float2 ends[HEADS];  // the highest score times log2(e), and the sum of powers
  __shared__ __align__(16) uint4 fresh[2][SIDES][32];
  __shared__ __align__(8) u64 arrived[WARPS];
  __shared__ __align__(8) float2 halves[SIDES == 2 ? 2 : 1][SIDES == 2 ? WARPS : 1][TILES][32];
  __shared__ bool comes_last;
  float* sums = (float*)(memory + WARPS * SLOTS * PITCH);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, row_of = lane / 4, quarter = lane % 4;
  const int side = warp % SIDES, crew = warp / SIDES;
  // The first cluster of every request and key head comes before any second one.
  const int pairs = gridDim.x / (PARTS * TEAMS), part = blockIdx.x % PARTS;
  const int pair = blockIdx.x / PARTS % pairs, team = blockIdx.x / PARTS / pairs;
  constexpr int SHARES = GROUP / HEADS;
  const int kv_head = pair / SHARES % a.kv_heads;
  const long long request = pair / SHARES / a.kv_heads;
  const int first_head = kv_head * GROUP + pair % SHARES * HEADS;
  const u32 barrier = shared_address(&arrived[warp]), mine = shared_address(memory) + warp * SLOTS * PITCH;

  // Lists and positions are made before a step's first kernel, weights and angles before any.
  const long long start = listed<LONG_STARTS>(a.starts, request);
  const int length = (int)(listed<LONG_STARTS>(a.starts, request + 1) - start);
  const int teams = TEAMS == 1 ? 1 : max(1, min(TEAMS, (length + PARTS * ROUND - 1) / (PARTS * ROUND)));
  if (team >= teams) return;
  if (lane == 0) {
    barrier_begin(barrier, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncwarp();
#if EARLY
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif

  const int place_of_part = team * PARTS + part, share = (length + teams * PARTS - 1) / (teams * PARTS);
  const int first = place_of_part * share, last = min(first + share, length), newest = length - 1;
  const bool has_newest = length && first <= newest && newest < last;
  // Whose part ends with the newest slot; the first block where there is no slot.
  const bool makes = OWN_KEYS && (length ? has_newest : part == 0);
  const u16* keys = a.keys + kv_head * a.key_head_stride + side * OWN;
  const u16* values = a.values + kv_head * a.value_head_stride + side * OWN;
  uint4 key[TILES][BLOCKS];

  auto load = [&](int at) {
    const int from = at + crew * SLOTS, left = min(max(min(last, newest) - from, 0), SLOTS);
    const long long slot = lane < left ? listed<LONG_SLOTS>(a.slots, start + from + lane) : 0;
    if (lane == 0) barrier_expect(barrier, left * OWN * 2);
    __syncwarp();
    if (lane < left) copy_row(mine + lane * PITCH, values + slot * a.value_stride, OWN * 2, barrier, read_once());
    for (int row = left; row < SLOTS; row++) store_shared(mine + row * PITCH + lane * 16, {0, 0, 0, 0});
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      const int number = tile * 8 + row_of;
      const long long row = __shfl_sync(0xffffffffu, slot, number);
#pragma unroll
      for (int block = 0; block < BLOCKS; block++) {
        key[tile][block] = {0, 0, 0, 0};
        if (number < left) key[tile][block] = load_row(keys + row * a.key_stride + block * 32 + quarter * 8);
      }
    }
  };

  load(first);
  Front front;
  uint4 weight[SIDES] = {}, key_weight[SIDES] = {};
  constexpr int KEY = HEADS % WARPS, VALUE = (HEADS + 1) % WARPS;
  if (warp < HEADS || (makes && warp == KEY)) {
    front.read(a, listed<LONG_POSITIONS>(a.positions, request), lane);
#pragma unroll
    for (int of = 0; of < SIDES; of++) {
      weight[of] = load_weight(a.q_weight + of * OWN + lane * 8);
      if (makes && warp == KEY) key_weight[of] = load_weight(a.k_weight + of * OWN + lane * 8);
    }
  }
#if EARLY
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  // One head of what the layer's projection has made: `which` 0, a query; 1, the new key; 2, the new value.
  auto make = [&](int which, const u16* from, const uint4 (&by)[SIDES]) {
    Head x;
#pragma unroll
    for (int of = 0; of < SIDES; of++) widen(x[of], load_row(from + of * OWN + lane * 8));
    norm(x, a.eps);
    if (which != 2) {
#pragma unroll
      for (int of = 0; of < SIDES; of++) times(x[of], by[of]);
      front.turn(x, lane);
    }
#pragma unroll
    for (int of = 0; of < SIDES; of++) {
      const uint4 rounded = narrow(x[of]);
      if (which == 0) {
        store_shared(shared_address(queries) + warp * QUERY_PITCH + (of * OWN + lane * 8) * 2, rounded);
        continue;
      }
      fresh[which - 1][of][lane] = rounded;
      if (pair % SHARES) continue;
      const long long place = listed<LONG_PLACES>(a.places, request);
      u16* to = which == 1 ? a.keys + kv_head * a.key_head_stride + place * a.key_stride
                           : a.values + kv_head * a.value_head_stride + place * a.value_stride;
      *(uint4*)(to + of * OWN + lane * 8) = rounded;
    }
  };
  if (warp < HEADS) make(0, a.q + request * a.q_stride + (first_head + warp) * a.q_head_stride, weight);
  if (makes && warp == KEY) make(1, a.new_keys + request * a.new_key_stride + kv_head * WIDTH, key_weight);
  if (makes && warp == VALUE) make(2, a.new_values + request * a.new_value_stride + kv_head * WIDTH, weight);
  __syncthreads();

  // Of head `row_of`, columns 8 n + 2 quarter and the next of this side, for each n.
  float whole[OWN / 8][2] = {}, highest = NOTHING, total = 0;
  const float scale = a.scaling * LOG2_E;
  u32 parity = 0;
  for (int at = first; at < last; at += ROUND, parity ^= 1) {
    if (at != first) {
      // Bulk copies come behind what this warp has read and stored there.
      __syncwarp();
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      load(at);
    }
    const int own = newest - at - crew * SLOTS;
    if (has_newest && 0 <= own && own < SLOTS) {
      const long long row = OWN_KEYS ? 0 : listed<LONG_SLOTS>(a.slots, start + newest);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++)
        if (own == tile * 8 + row_of)
#pragma unroll
          for (int block = 0; block < BLOCKS; block++)
            key[tile][block] = OWN_KEYS ? fresh[0][side][block * 4 + quarter]
                                        : load_row(keys + row * a.key_stride + block * 32 + quarter * 8);
      const uint4 value = OWN_KEYS ? fresh[1][side][lane] : load_row(values + row * a.value_stride + lane * 8);
      store_shared(mine + own * PITCH + lane * 16, value);
    }
    float scores[TILES][2] = {};
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
      uint4 q = {0, 0, 0, 0};
      if (row_of < HEADS)
        q = load_shared(shared_address(queries) + row_of * QUERY_PITCH + side * (OWN * 2) + block * 64 + quarter * 16);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        const uint4& k = key[tile][block];
        multiply_add(scores[tile], q.x, q.y, k.x, k.y);
        multiply_add(scores[tile], q.z, q.w, k.z, k.w);
      }
    }
    if (SIDES == 2) {
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) halves[parity][warp][tile][lane] = {scores[tile][0], scores[tile][1]};
      both_sides(crew);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        const float2 other = halves[parity][warp ^ 1][tile][lane];
        scores[tile][0] += other.x, scores[tile][1] += other.y;
      }
    }
    float top = NOTHING;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
      for (int number = 0; number < 2; number++) {
        const int slot = at + crew * SLOTS + tile * 8 + quarter * 2 + number;
        float& score = scores[tile][number];
        score = slot < last ? score * scale : NOTHING;
        top = fmaxf(top, score);
      }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float higher = fmaxf(highest, top), shrink = highest == NOTHING ? 0.0f : exp2f(highest - higher);
    highest = higher;
    total *= shrink;
    u32 powers[TILES + TILES % 2] = {};
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      const float one = scores[tile][0] == NOTHING ? 0.0f : exp2f(scores[tile][0] - higher);
      const float two = scores[tile][1] == NOTHING ? 0.0f : exp2f(scores[tile][1] - higher);
      total += one + two;
      powers[tile] = packed(one, two);
    }
    if (at != first)
#pragma unroll
      for (int number = 0; number < OWN / 8; number++) whole[number][0] *= shrink, whole[number][1] *= shrink;
    barrier_wait(barrier, parity);
    __syncwarp();
    const u32 from = mine + lane % 8 * PITCH;
    if (TILES == 1) {
#pragma unroll
      for (int number = 0; number < OWN / 8; number += 4) {
        const uint4 v = load_turned(from + (number + lane / 8) * 16);
#pragma unroll
        for (int further = 0; further < 4; further++)
          multiply_add(whole[number + further], powers[0], 0, word(v, further), 0);
      }
    } else {
#pragma unroll
      for (int tile = 0; tile < TILES; tile += 2)
#pragma unroll
        for (int number = 0; number < OWN / 8; number += 2) {
          const uint4 v = load_turned(from + (tile + lane / 8 % 2) * (8 * PITCH) + (number + lane / 16) * 16);
          multiply_add(whole[number], powers[tile], powers[tile + 1], v.x, v.y);
          multiply_add(whole[number + 1], powers[tile], powers[tile + 1], v.z, v.w);
        }
    }
  }
  total += __shfl_xor_sync(0xffffffffu, total, 1);
  total += __shfl_xor_sync(0xffffffffu, total, 2);

  if (row_of < HEADS) {
    float* to = sums + (warp * HEADS + row_of) * APART + quarter * 2;
#pragma unroll
    for (int number = 0; number < OWN / 8; number++)
      *(float2*)(to + number * 8) = {whole[number][0], whole[number][1]};
    if (quarter == 0) extremes[warp][row_of] = {highest, total};
  }
  __syncthreads();
  // The warps' sums into those of the first crew.
#pragma unroll
  for (int head = 0; head < HEADS; head++) {
    float top = NOTHING, all = 0, one[SIDES] = {};
#pragma unroll
    for (int other = 0; other < CREWS; other++) top = fmaxf(top, extremes[other * SIDES][head].x);
#pragma unroll
    for (int other = 0; other < CREWS; other++) {
      const float2 end = extremes[other * SIDES][head];
      const float factor = end.x == NOTHING ? 0.0f : exp2f(end.x - top);
      all += end.y * factor;
#pragma unroll
      for (int of = 0; of < SIDES; of++) one[of] += sums[((other * SIDES + of) * HEADS + head) * APART + thread] * factor;
    }
#pragma unroll
    for (int of = 0; of < SIDES; of++) sums[(of * HEADS + head) * APART + thread] = one[of];
    if (thread == 0) ends[head] = {top, all};
  }
  all_of_cluster();
  // Each block has some columns of what all have.
  constexpr int COLUMNS = HEADS * WIDTH / PARTS;
  auto store = [&](int place, float2 made, float all) {
    const float inverse = all > 0 ? 1.0f / all : 0.0f;
    const int head = place / WIDTH, column = place % WIDTH;
    *(u32*)(a.out + request * a.out_stride + (first_head + head) * a.out_head_stride + column) =
        packed(made.x * inverse, made.y * inverse);
  };
  float* left_sums = a.sums + (long long)pair * TEAMS * (HEADS * WIDTH);
  float2* left_ends = a.extremes + (pair * PARTS + part) * (TEAMS * HEADS);
  for (int place = part * COLUMNS + thread * 2; place < (part + 1) * COLUMNS; place += 64 * WARPS) {
    const int head = place / WIDTH, column = place % WIDTH;
    const float* from = &sums[(column / OWN * HEADS + head) * APART + column % OWN];
    float2 end[PARTS], sum[PARTS], made = {0, 0};
    float top = NOTHING, all = 0;
#pragma unroll
    for (int block = 0; block < PARTS; block++) {
      end[block] = load_two(of_block(shared_address(&ends[head]), block));
      sum[block] = load_two(of_block(shared_address(from), block));
    }
#pragma unroll
    for (int block = 0; block < PARTS; block++) top = fmaxf(top, end[block].x);
#pragma unroll
    for (int block = 0; block < PARTS; block++) {
      const float factor = end[block].x == NOTHING ? 0.0f : exp2f(end[block].x - top);
      all += end[block].y * factor;
      made.x += sum[block].x * factor;
      made.y += sum[block].y * factor;
    }
    if (TEAMS == 1 || teams == 1) {
      store(place, made, all);
      continue;
    }
    *(float2*)(left_sums + team * (HEADS * WIDTH) + place) = made;
    if (place == part * COLUMNS || column == 0) left_ends[team * HEADS + head] = {top, all};
  }
  // What others read of this block's memory stays until all have.
  all_of_cluster();
  if (TEAMS == 1 || teams == 1) return;

  // Whoever is last of the clusters adds these columns up, in the clusters' order: the sum has the same bits each time.
  __threadfence();
  __syncthreads();
  u32* counter = a.counters + pair * PARTS + part;
  if (thread == 0) comes_last = atomicAdd(counter, 1) == teams - 1;
  __syncthreads();
  if (!comes_last) return;
  __threadfence();
  if (thread == 0) *counter = 0;
  for (int place = part * COLUMNS + thread * 2; place < (part + 1) * COLUMNS; place += 64 * WARPS) {
    const int head = place / WIDTH;
    float2 made = {0, 0};
    float top = NOTHING, all = 0;
    for (int other = 0; other < teams; other++) top = fmaxf(top, load_fresh(&left_ends[other * HEADS + head]).x);
    for (int other = 0; other < teams; other++) {
      const float2 end = load_fresh(&left_ends[other * HEADS + head]);
      const float2 sum = load_fresh(left_sums + other * (HEADS * WIDTH) + place);
      const float factor = end.x == NOTHING ? 0.0f : exp2f(end.x - top);
      all += end.y * factor;
      made.x += sum.x * factor;
      made.y += sum.y * factor;
    }
    store(place, made, all);
  }
}
