/* Calls that are refused: they report their name. */
#include "refused.h"

#include <stdio.h>
#include <string.h>

#include "driver.h"

enum {
#define NUMBER(name, version, why) REFUSED_##name,
  REFUSED(NUMBER) COUNT
};
static const char *const names[] = {
#define NAME(name, version, why) #name,
    REFUSED(NAME)};
static struct {
  _Atomic bool printed, called; /* printed: on stderr, once; called: since the last softgpu_refused */
} calls[COUNT];

static CUresult refuse(int number, const char *why) {
  explain("the software GPU does not support %s (%s)", names[number], why);
  atomic_store(&calls[number].called, true);
  if (!atomic_exchange(&calls[number].printed, true)) fprintf(stderr, "softgpu: %s\n", softgpu_last_error());
  return CUDA_ERROR_NOT_SUPPORTED;
}

#define DEFINE(name, version, why) \
  CUresult name(void); \
  CUresult name(void) { return refuse(REFUSED_##name, why); }
REFUSED(DEFINE)

size_t softgpu_refused(char *text, size_t bytes) {
  size_t used = 0;
  if (text == NULL || bytes == 0) return 0;
  *text = 0;
  for (int i = 0; i < COUNT; i++) {
    size_t length = strlen(names[i]) + 1;
    if (length >= bytes - used || !atomic_exchange(&calls[i].called, false)) continue;
    memcpy(text + used, names[i], length - 1);
    memcpy(text + used + length - 1, "\n", 2);
    used += length;
  }
  return used;
}
