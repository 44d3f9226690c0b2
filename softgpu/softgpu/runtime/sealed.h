/* Pages for function pointers, which are writable only while they change: a kernel's store to a bad address must not
 * lead to a call. */
#ifndef SOFTGPU_SEALED_H
#define SOFTGPU_SEALED_H
#include <sys/mman.h>
#include <unistd.h>

enum { SEALED_BYTES = 4096 };
#define SEALED __attribute__((aligned(4096))) /* the only member of such a struct fills the page */

/* Changes nothing if pages are larger: other variables are then on the same page. */
static inline void seal(void *page, int protection) {
  if (sysconf(_SC_PAGESIZE) == SEALED_BYTES) mprotect(page, SEALED_BYTES, protection);
}
#endif
