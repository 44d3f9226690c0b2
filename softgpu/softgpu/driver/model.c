/* Modelled time: the time of a device's copies and named kernels, independent of their real time here.
 *
 * Work runs for real, and then waits for the rest of its modelled time without using a core. Each stream has a clock,
 * the modelled end of its latest work; the next work begins then, or at its submission if that is later. So a thread
 * that wakes late delays only itself, and events have modelled times. Each device has one engine for copies in and one
 * for copies out; named kernels hold a share of the device, and queue if the shares would exceed 1. If the model has
 * multiprocessors (SMs), kernels hold some of those on which they may run, and queue for them. Kernels also share the
 * bandwidth of memory: each gets at most what those booked before it leave. Work that is late in real time still gets
 * modelled time that is free.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BOOKINGS = 256 };
static const int64_t REMEMBERED_NS = 100000000; /* longer than a thread that can run waits for a core */

/* The bookings of a resource of size 1: an engine, which a copy takes whole, the device, or its bandwidth. */
struct diary {
  struct booking {
    int64_t from, to;
    double share;
    sm_set on; /* of a device with SMs */
  } bookings[MOST_BOOKINGS];
  size_t booked;
};

struct model {
  double copy_ns_per_byte; /* 0: the time of copies is not modelled */
  int64_t copy_latency_ns, launch_latency_ns;
  uint32_t count;
  struct named {
    char *name;
    double takes_ns; /* on the whole device */
    double share;     /* 0: as much as its blocks fill */
    double bandwidth; /* the part that it uses meanwhile */
  } *kernels;
  uint32_t sms, blocks_per_sm; /* 0: kernels hold shares of the device */
  pthread_mutex_t lock;    /* guards the bookings */
  struct diary engines[2]; /* for copies in, and out */
  struct diary device, bandwidth;
};

/* What a piece of work needs. */
typedef struct demand {
  double takes_ns, share, bandwidth;
  uint32_t sms;    /* so many of the next; 0: a share of the whole */
  sm_set allowed;
} demand;

static _Thread_local int64_t clock_ns INITIAL_EXEC; /* of the work that this thread runs */

int64_t model_clock(void) { return clock_ns; }
void model_set_clock(int64_t time_ns) { clock_ns = time_ns; }

static bool covers(const struct booking *b, int64_t at) { return b->from <= at && at < b->to; }

/* The sum of shares at a time. */
static double used(const struct diary *d, int64_t at) {
  double sum = 0;
  for (size_t i = 0; i < d->booked; i++)
    if (covers(&d->bookings[i], at)) sum += d->bookings[i].share;
  return sum;
}

/* The largest sum of shares at any time in [from, to). */
static double peak(const struct diary *d, int64_t from, int64_t to) {
  double most = 0;
  for (size_t i = 0; i <= d->booked; i++) { /* the peak is at `from`, or where a booking begins */
    int64_t at = i == d->booked ? from : d->bookings[i].from;
    if (at < from || at >= to) continue;
    double sum = used(d, at);
    if (sum > most) most = sum;
  }
  return most;
}

/* Whether there is room for work in [from, to); *on: the SMs for it. */
static bool room(const struct diary *d, int64_t from, int64_t to, const demand *needs, sm_set *on) {
  const double slack = 1e-9; /* of sums of fractions */
  *on = (sm_set){0};
  if (needs->sms == 0) return d->booked == 0 || peak(d, from, to) + needs->share <= 1 + slack;
  sm_set free = needs->allowed;
  for (size_t i = 0; i < d->booked; i++)
    if (d->bookings[i].from < to && d->bookings[i].to > from) sms_take(&free, &d->bookings[i].on);
  *on = sms_first(&free, needs->sms);
  return sms_count(on) == needs->sms;
}

static int64_t next_end(const struct diary *d, int64_t after) {
  int64_t next = INT64_MAX;
  for (size_t i = 0; i < d->booked; i++)
    if (d->bookings[i].to > after && d->bookings[i].to < next) next = d->bookings[i].to;
  return next;
}

/* Removes bookings that ended before any later work can begin, or, without room, the booking that ended first. */
static void forget_past(struct diary *d) {
  int64_t now = now_ns(), past = (clock_ns < now ? clock_ns : now) - REMEMBERED_NS;
  size_t kept = 0, first = 0;
  for (size_t i = 0; i < d->booked; i++)
    if (d->bookings[i].to > past) d->bookings[kept++] = d->bookings[i];
  d->booked = kept;
  if (kept < MOST_BOOKINGS) return;
  for (size_t i = 1; i < kept; i++)
    if (d->bookings[i].to < d->bookings[first].to) first = i;
  d->bookings[first] = d->bookings[--d->booked];
}

static void note(struct diary *d, int64_t from, int64_t to, double share, const sm_set *on) {
  forget_past(d);
  for (size_t i = 0; i < d->booked; i++) {
    struct booking *b = &d->bookings[i];
    if (b->to == from && b->share == share && memcmp(&b->on, on, sizeof *on) == 0) { /* adjacent ones are joined */
      b->to = to;
      return;
    }
  }
  d->bookings[d->booked++] = (struct booking){from, to, share, *on};
}

static int64_t next_change(const struct diary *d, int64_t after) {
  int64_t next = next_end(d, after);
  for (size_t i = 0; i < d->booked; i++)
    if (d->bookings[i].from > after && d->bookings[i].from < next) next = d->bookings[i].from;
  return next;
}

/* The end of work that begins at `at`: it slows down while others leave it less bandwidth than it uses. */
static int64_t end_of(struct model *m, int64_t at, const demand *needs, bool booked) {
  struct diary *d = &m->bandwidth;
  double left_ns = needs->takes_ns; /* at full speed */
  if (needs->bandwidth <= 0) return at + (int64_t)left_ns;
  for (;;) {
    double rest = 1 - used(d, at), speed = rest < needs->bandwidth ? rest / needs->bandwidth : 1;
    if (speed < 1e-6) speed = 0;
    int64_t until = next_change(d, at);
    bool last = speed > 0 && (until == INT64_MAX || left_ns / speed <= (double)(until - at));
    if (last) until = at + (int64_t)(left_ns / speed);
    if (booked && speed > 0) note(d, at, until, needs->bandwidth * speed, &(sm_set){0});
    if (last) return until;
    left_ns -= (double)(until - at) * speed;
    at = until;
  }
}

/* Books work at the first place with room, and moves this thread's clock to its end. */
static void reserve(struct model *m, struct diary *d, const demand *needs) {
  pthread_mutex_lock(&m->lock);
  int64_t from = clock_ns;
  sm_set on;
  forget_past(d);
  while (!room(d, from, end_of(m, from, needs, false), needs, &on)) {
    int64_t next = next_end(d, from);
    if (next == INT64_MAX) break;
    from = next;
  }
  clock_ns = end_of(m, from, needs, true);
  note(d, from, clock_ns, needs->share, &on);
  pthread_mutex_unlock(&m->lock);
}

static demand of_copy(const struct model *m, const copy *c) {
  double bytes = (double)(c->width * c->height * c->depth);
  return (demand){.takes_ns = (double)m->copy_latency_ns + bytes * m->copy_ns_per_byte, .share = 1};
}

static uint64_t waves(uint64_t blocks, uint64_t at_once) { return (blocks + at_once - 1) / at_once; }

/* A kernel on a device with SMs: it holds those that its blocks fill, or its share, of those on which it may run. */
static demand on_sms(const struct model *m, const struct named *k, const kernel_call *call) {
  const sg_launch *l = &call->launch;
  uint64_t blocks = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2], each = m->blocks_per_sm;
  demand needs = {.allowed = call->sms != NULL ? *call->sms : sms_all(device_sms(&devices[l->device]))};
  uint32_t own = sms_count(&needs.allowed);
  double longer;
  if (k->share > 0) {
    uint32_t wanted = (uint32_t)(k->share * m->sms + 0.5);
    if (wanted == 0) wanted = 1;
    needs.sms = wanted < own ? wanted : own;
    longer = (double)wanted / needs.sms;
  } else {
    uint64_t filled = waves(blocks, each);
    needs.sms = filled < own ? (uint32_t)filled : own;
    longer = (double)waves(blocks, own * each) / (double)waves(blocks, m->sms * each);
  }
  needs.takes_ns = k->takes_ns * longer;
  needs.bandwidth = k->bandwidth / longer;
  return needs;
}

/* Without SMs in the model: a partition, or the part of this process, bounds the shares of its kernels. */
static demand on_share(const struct named *k, const kernel_call *call) {
  const device *dev = &devices[call->launch.device];
  double share = k->share > 0 ? k->share : 1;
  double most = (double)(call->sms != NULL ? sms_count(call->sms) : device_sms(dev)) / device_all_sms(dev);
  double longer = share > most ? share / most : 1;
  return (demand){.takes_ns = k->takes_ns * longer, .share = share / longer, .bandwidth = k->bandwidth / longer};
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
  demand needs;
  if (engine >= 0) {
    needs = of_copy(m, &o->copy);
    reserve(m, &m->engines[engine], &needs);
  } else if (k != NULL) {
    needs = m->sms > 0 ? on_sms(m, k, &o->kernel) : on_share(k, &o->kernel);
    reserve(m, &m->device, &needs);
  } else if (o->kind == OP_HOST) clock_ns = now;
  else clock_ns += now - began_ns;
}

static void model_free(struct model *m) {
  for (uint32_t i = 0; m->kernels != NULL && i < m->count; i++) free(m->kernels[i].name);
  free(m->kernels);
  free(m);
}

/* A program may know the number of SMs from its green contexts: it changes only where there are none. */
static CUresult set_sms(device *dev, uint32_t sms) {
  pthread_mutex_lock(&state_lock);
  bool fixed = dev->sms != sms && dev->primary != NULL && dev->primary->greens != NULL;
  if (!fixed) dev->sms = sms;
  pthread_mutex_unlock(&state_lock);
  REQUIRE(!fixed, CUDA_ERROR_INVALID_VALUE, "device %d has green contexts: the number of its SMs stays", dev->ordinal);
  return CUDA_SUCCESS;
}

int softgpu_model(uint32_t ordinal, const sg_model *with) {
  REQUIRE(ordinal < (uint32_t)device_count, CUDA_ERROR_INVALID_DEVICE, "there is no device %u", ordinal);
  REQUIRE(with->sms <= MAX_SMS && (with->sms == 0 || with->blocks_per_sm > 0), CUDA_ERROR_INVALID_VALUE,
          "a device has at most %d SMs, with room for a block each", MAX_SMS);
  struct model *m = calloc(1, sizeof *m);
  REQUIRE(m != NULL, CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a model");
  *m = (struct model){.copy_ns_per_byte = with->copy_bytes_per_s > 0 ? 1e9 / with->copy_bytes_per_s : 0,
                      .copy_latency_ns = (int64_t)(with->copy_latency_s * 1e9),
                      .launch_latency_ns = (int64_t)(with->launch_latency_s * 1e9),
                      .sms = with->sms,
                      .blocks_per_sm = with->blocks_per_sm,
                      .count = with->count,
                      .kernels = calloc(with->count + 1, sizeof *m->kernels)};
  pthread_mutex_init(&m->lock, NULL);
  bool whole = m->kernels != NULL;
  for (uint32_t i = 0; whole && i < with->count; i++) {
    const sg_takes *k = &with->kernels[i];
    m->kernels[i] = (struct named){strdup(k->name), k->seconds * 1e9, k->share, k->bandwidth};
    whole = m->kernels[i].name != NULL;
  }
  CUresult status = whole ? set_sms(&devices[ordinal], with->sms)
                          : fail(CUDA_ERROR_OUT_OF_MEMORY, "no host memory for a model");
  if (status != CUDA_SUCCESS) {
    model_free(m);
    return status;
  }
  bool timed = with->copy_bytes_per_s > 0 || with->launch_latency_s > 0 || with->count > 0;
  devices[ordinal].model = timed ? m : NULL; /* an older one may be in use, and is small: it is not freed */
  if (!timed) model_free(m);
  return CUDA_SUCCESS;
}
