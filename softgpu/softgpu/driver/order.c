/* The order of work that the program itself establishes, independent of when work has run.
 *
 * Each stream counts its work on a track. A moment has, for each track, how much of its work comes before: by the
 * stream's order, waits for events, the default stream, launches of one graph instance, and the work for which the host
 * had waited at the submission. If the moment of a piece of work does not include another piece's number, nothing
 * orders it after that piece. All threads of the host count as one, since this file does not see how they wait for each
 * other.
 */
#include "races.h"

#include <stdlib.h>

static uint64_t counts[TRACKS]; /* under work_lock, as the rest */
static moment known;            /* to the host */
static unsigned users[TRACKS];  /* live streams */
static uint32_t latest_track;

/* Streams share a track if there are too many: then the work of one seems to be ordered with the work of the other. */
void track_take(CUstream s) {
  pthread_mutex_lock(&work_lock);
  uint32_t best = latest_track % (TRACKS - 1) + 1;
  for (uint32_t i = 1; i < TRACKS; i++) { /* of the least used tracks, the one that was unused for longest */
    uint32_t track = (latest_track + i - 1) % (TRACKS - 1) + 1;
    if (users[track] < users[best]) best = track;
  }
  users[best]++;
  s->track = latest_track = best;
  pthread_mutex_unlock(&work_lock);
}

void track_give_back(CUstream s) {
  pthread_mutex_lock(&work_lock);
  users[s->track]--;
  pthread_mutex_unlock(&work_lock);
}

moment *moment_copy(const moment *of) {
  moment *made = malloc(sizeof *made);
  if (made != NULL) *made = *of;
  return made;
}

void moment_join(moment *to, const moment *from) {
  for (int i = 0; i < TRACKS; i++)
    if (from->at[i] > to->at[i]) to->at[i] = from->at[i];
}

moment *moment_next_locked(CUstream s) {
  moment_join(&s->order, &known);
  s->order.at[s->track] = ++counts[s->track];
  if (stream_blocks(s)) moment_join(&s->home->blocking, &s->order);
  if (!s->internal) {
    moment_join(&s->ctx->all, &s->order);
    moment_join(&s->home->all, &s->order);
  }
  return moment_copy(&s->order);
}

moment *moment_of_host_locked(void) {
  known.at[HOST_TRACK] = ++counts[HOST_TRACK];
  return moment_copy(&known);
}

void host_learns_locked(const moment *of) {
  if (of == NULL || !atomic_load_explicit(&strict, memory_order_relaxed)) return;
  moment_join(&known, of);
  race_prune_locked();
}

void host_learns_all_locked(void) {
  if (!atomic_load_explicit(&strict, memory_order_relaxed)) return;
  for (int i = 0; i < TRACKS; i++) known.at[i] = counts[i];
  race_prune_locked();
}

bool host_knows_locked(uint32_t track, uint64_t number) { return number <= known.at[track]; }
