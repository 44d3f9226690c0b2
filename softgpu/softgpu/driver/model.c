/* Modelled time: the time of a device's copies and named kernels, independent of their real time here.
 *
 * Work runs for real, and then waits for the rest of its modelled time without using a core. Each stream has a clock,
 * the modelled end of its latest work; the next work begins then, or at its submission if that is later. So a thread
 * that wakes late delays only itself, and events have modelled times. Each device has one engine for copies in and one
 * for copies out; named kernels hold a share of the device, and queue if the shares would exceed 1. Work that is
 * late in real time still gets modelled time that is free.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BOOKINGS = 256 };
static const int64_t REMEMBERED_NS = 100000000; /* longer than a thread that can run waits for a core */

/* The bookings of a resource of size 1: an engine, which a copy takes whole, or the device. */
struct diary {
  struct booking {
    int64_t from, to;
    double share;
  } bookings[MOST_BOOKINGS];
  size_t booked;
};

struct model {
  double copy_ns_per_byte; /* 0: the time of copies is not modelled */
  int64_t copy_latency_ns, launch_latency_ns;
  uint32_t count;
  struct named {
    char *name;
    int64_t takes_ns;
    double share;
  } *kernels;
  pthread_mutex_t lock;    /* guards the bookings */
  struct diary engines[2]; /* for copies in, and out */
  struct diary shares;
};

static _Thread_local int64_t clock_ns INITIAL_EXEC; /* of the work that this thread runs */

int64_t model_clock(void) { return clock_ns; }
void model_set_clock(int64_t time_ns) { clock_ns = time_ns; }

/* The largest sum of shares at any time in [from, to). */
static double peak(const struct diary *d, int64_t from, int64_t to) {
  double most = 0;
  for (size_t i = 0; i <= d->booked; i++) { /* the peak is at `from`, or where a booking begins */
    int64_t at = i == d->booked ? from : d->bookings[i].from;
    if (at < from || at >= to) continue;
    double sum = 0;
    for (size_t j = 0; j < d->booked; j++)
      if (d->bookings[j].from <= at && at < d->bookings[j].to) sum += d->bookings[j].share;
    if (sum > most) most = sum;
  }
  return most;
}

static int64_t next_end(const struct diary *d, int64_t after) {
  int64_t next = INT64_MAX;
  for (size_t i = 0; i < d->booked; i++)
    if (d->bookings[i].to > after && d->bookings[i].to < next) next = d->bookings[i].to;
  return next;
}

/* Removes bookings that ended before any later work can begin, or, without room, the booking that ended first. */
static void forget_past(struct diary *d, int64_t ready) {
  int64_t now = now_ns(), past = (ready < now ? ready : now) - REMEMBERED_NS;
  size_t kept = 0, first = 0;
  for (size_t i = 0; i < d->booked; i++)
    if (d->bookings[i].to > past) d->bookings[kept++] = d->bookings[i];
  d->booked = kept;
  if (kept < MOST_BOOKINGS) return;
  for (size_t i = 1; i < kept; i++)
    if (d->bookings[i].to < d->bookings[first].to) first = i;
  d->bookings[first] = d->bookings[--d->booked];
}

static void note(struct diary *d, int64_t from, int64_t to, double share) {
  for (size_t i = 0; i < d->booked; i++)
    if (d->bookings[i].to == from && d->bookings[i].share == share) { /* adjacent bookings are joined */
      d->bookings[i].to = to;
      return;
    }
  d->bookings[d->booked++] = (struct booking){from, to, share};
}

/* Books this time at the first place with room, and moves this thread's clock to its end. */
static void reserve(struct model *m, struct diary *d, int64_t takes_ns, double share) {
  const double slack = 1e-9; /* of sums of fractions */
  pthread_mutex_lock(&m->lock);
  int64_t from = clock_ns;
  forget_past(d, from);
  while (d->booked > 0 && peak(d, from, from + takes_ns) + share > 1 + slack) {
    int64_t next = next_end(d, from);
    if (next == INT64_MAX) break;
    from = next;
  }
  clock_ns = from + takes_ns;
  note(d, from, clock_ns, share);
  pthread_mutex_unlock(&m->lock);
}

static int64_t copy_ns(const struct model *m, const copy *c) {
  return m->copy_latency_ns + (int64_t)((double)(c->width * c->height * c->depth) * m->copy_ns_per_byte);
}

static const struct named *find(const struct model *m, const char *name) {
  for (uint32_t i = 0; i < m->count; i++)
    if (strcmp(m->kernels[i].name, name) == 0) return &m->kernels[i];
  return NULL;
}

static bool on_device(const void *address) {
  allocation found;
  return memory_find((uintptr_t)address, &found) && found.dev != NULL;
}

/* The engine that a copy uses: 0 in, 1 out, -1 none. */
static int engine_of(const copy *c) {
  bool from = on_device(c->src), to = on_device(c->dst);
  return from == to ? -1 : from ? 1 : 0;
}

/* Moves this thread's clock forward after work that has run from began_ns (real time) until now. */
void model_account(struct model *m, const op *o, int64_t began_ns) {
  int64_t now = now_ns();
  const struct named *k = NULL;
  int engine = o->kind == OP_COPY && m->copy_ns_per_byte > 0 ? engine_of(&o->copy) : -1;
  if (o->kind == OP_KERNEL) {
    clock_ns += m->launch_latency_ns;
    k = find(m, o->kernel.kern->info->name);
  }
  if (engine >= 0) reserve(m, &m->engines[engine], copy_ns(m, &o->copy), 1);
  else if (k != NULL) reserve(m, &m->shares, k->takes_ns, k->share);
  else if (o->kind == OP_HOST) clock_ns = now;
  else clock_ns += now - began_ns;
}

static void model_free(struct model *m) {
  for (uint32_t i = 0; m->kernels != NULL && i < m->count; i++) free(m->kernels[i].name);
  free(m->kernels);
  free(m);
}

int softgpu_model(uint32_t ordinal, double copy_bytes_per_s, double copy_latency_s, double launch_latency_s,
                       uint32_t count, const char *const *names, const double *seconds, const double *shares) {
  REQUIRE(ordinal < (uint32_t)device_count, CUDA_ERROR_INVALID_DEVICE, "there is no device %u", ordinal);
  struct model *m = calloc(1, sizeof *m);
  REQUIRE(m != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a model");
  *m = (struct model){.copy_ns_per_byte = copy_bytes_per_s > 0 ? 1e9 / copy_bytes_per_s : 0,
                      .copy_latency_ns = (int64_t)(copy_latency_s * 1e9),
                      .launch_latency_ns = (int64_t)(launch_latency_s * 1e9),
                      .count = count,
                      .kernels = calloc(count + 1, sizeof *m->kernels)};
  pthread_mutex_init(&m->lock, NULL);
  bool whole = m->kernels != NULL;
  for (uint32_t i = 0; whole && i < count; i++) {
    m->kernels[i] = (struct named){strdup(names[i]), (int64_t)(seconds[i] * 1e9), shares[i]};
    whole = m->kernels[i].name != NULL;
  }
  if (!whole) {
    model_free(m);
    return fail(CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a model");
  }
  devices[ordinal].model = m; /* an older model may be in use, and is small: it is not freed */
  return CUDA_SUCCESS;
}
