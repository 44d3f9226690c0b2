/* The output of kernels: it goes to stdout at once (CUDA's comes later), unless the process turns that off, and the
 * newest part is kept for softgpu_take_output. */
#include "driver.h"

#include <stdio.h>
#include <string.h>


enum { KEPT_BYTES = 64 << 10 };
static struct {
  char text[KEPT_BYTES];
  size_t bytes;
} kept[MAX_DEVICES];
static pthread_mutex_t output_lock = PTHREAD_MUTEX_INITIALIZER; /* taken last of all */

static _Atomic bool silent;

void softgpu_echo(int on) { atomic_store(&silent, on == 0); }

void softgpu_write(uint32_t device, const char *text, size_t bytes) {
  if (!atomic_load_explicit(&silent, memory_order_relaxed)) {
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
  }
  if (device >= MAX_DEVICES) return;
  if (bytes > KEPT_BYTES) {
    text += bytes - KEPT_BYTES;
    bytes = KEPT_BYTES;
  }
  pthread_mutex_lock(&output_lock);
  size_t room = KEPT_BYTES - kept[device].bytes, lost = bytes > room ? bytes - room : 0;
  memmove(kept[device].text, kept[device].text + lost, kept[device].bytes - lost);
  memcpy(kept[device].text + kept[device].bytes - lost, text, bytes);
  kept[device].bytes += bytes - lost;
  pthread_mutex_unlock(&output_lock);
}

size_t softgpu_take_output(uint32_t device, char *text, size_t bytes) {
  if (device >= MAX_DEVICES || text == NULL) return 0;
  pthread_mutex_lock(&output_lock);
  size_t taken = kept[device].bytes < bytes ? kept[device].bytes : bytes;
  memcpy(text, kept[device].text, taken);
  memmove(kept[device].text, kept[device].text + taken, kept[device].bytes - taken);
  kept[device].bytes -= taken;
  pthread_mutex_unlock(&output_lock);
  return taken;
}
