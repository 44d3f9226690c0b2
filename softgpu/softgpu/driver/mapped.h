/* Memory mapped by hand (physical.c, mapped.c): handles of memory, and the places where it is mapped. */
#ifndef SOFTGPU_MAPPED_H
#define SOFTGPU_MAPPED_H
#include <sys/types.h>

#include "driver.h"

enum { MAP_GRANULARITY = 2 << 20 };

typedef struct physical {
  handle head;
  device *dev;
  CUmemAllocationProp props;
  size_t bytes;
  bool shares_file; /* the device's; memory that may be exported, or was imported, has a file of its own */
  int file;
  off_t offset;
  /* Under mapped_lock. The memory lives as long as one of the two is not 0. */
  unsigned references, mappings;
  bool parked; /* its pages are mapped at its place in the driver's own addresses */
  uint64_t inode; /* of the file, if other handles may have the same; 0: none has */
  struct physical *next_shared;
} physical;

extern pthread_mutex_t mapped_lock; /* taken before memory_lock */
void physical_drop_locked(physical *p); /* frees it if it has no reference and no mapping */
CUresult physical_check(const CUmemAllocationProp *props, device **dev);
/* Fills in the file and the offset of new memory, which is zeros; false: the host has no memory left. */
bool memory_file_new(physical *p);
bool device_file_take_locked(physical *p);
void device_file_give_locked(const physical *p);
/* Moves all pages of memory, as they are mapped from an address on, to a place of the driver's own, or back: to map them
 * anew takes as long as to write them. If the host cannot, they stay unmapped. */
void device_file_park_locked(physical *p, uintptr_t from);
bool device_file_fetch_locked(physical *p, uintptr_t to); /* false: they are mapped nowhere in the driver */
size_t device_file_parked_locked(void); /* the number of such places in use */
bool shared_leave_locked(physical *p); /* false: another handle of this process has the same memory */
physical *mapped_at_locked(uintptr_t address); /* NULL: nothing is mapped there */
/* Lets memory be mapped at addresses that a window has; false: the host has no memory left. */
bool mapped_reserve(uintptr_t base, size_t bytes);
CUresult mapped_unreserve(uintptr_t base); /* refused while memory is mapped there */

#define REQUIRE_WHOLE(number) \
  REQUIRE((number) % MAP_GRANULARITY == 0, CUDA_ERROR_INVALID_VALUE, "%s: %s is no multiple of %d", __func__, #number, \
          MAP_GRANULARITY)

#endif
