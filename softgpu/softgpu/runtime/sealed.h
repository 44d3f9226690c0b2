/* Pages for function pointers, which are writable only while they change: the ordinary store of a kernel with a bad
 * address must not become a call. */
#ifndef SOFTGPU_SEALED_H
#define SOFTGPU_SEALED_H
#include <sys/mman.h>
#include <unistd.h>

enum { SEALED_BYTES = 4096 };
#define SEALED __attribute__((aligned(4096))) /* the only member of such a struct fills the page */

/* Where pages are larger, other variables lie on the same one, and it stays as it is. */
static inline void seal(void *page, int protection) {
  if (sysconf(_SC_PAGESIZE) == SEALED_BYTES) mprotect(page, SEALED_BYTES, protection);
}
#endif
