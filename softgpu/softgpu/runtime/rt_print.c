/* printf and assert of compiled kernels, lane after lane. */
#define _GNU_SOURCE
#include "block.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 4096 }; /* the output of one call is cut off there */

typedef struct text {
  char bytes[LINE_BYTES + 1]; /* the C library ends what it writes with a zero */
  size_t length;
} text;

static void put(text *out, const char *bytes, size_t count) {
  size_t room = LINE_BYTES - out->length;
  if (count > room) count = room;
  memcpy(out->bytes + out->length, bytes, count);
  out->length += count;
}

/* Arguments that a kernel hands over; a confined one's addresses count within its window. */
typedef struct given {
  const sg_window *window;
  uint64_t at;
} given;

static const char *string_at(const sg_window *window, uint64_t address) {
  return (const char *)(uintptr_t)(address ? sg_fenced(window, address) : 0);
}

/* The next of the packed arguments, each aligned to its size. */
static uint64_t take(given *from, size_t size) {
  uint64_t start = (from->at + size - 1) / size * size, value = 0;
  memcpy(&value, (const void *)(uintptr_t)sg_fenced(from->window, start), size);
  from->at = start + size;
  return value;
}

/* A conversion: flags, width, precision and the length of our values. Width and precision are at most what a line holds:
 * the C library would take time and memory for all of a larger one, and nothing could end it. */
typedef struct conversion {
  char flags[8];
  const char *length;
  size_t value_bytes; /* of an integer */
  int width, precision; /* width below 0: to the left, precision below 0: none given */
  int arguments;
} conversion;

static int within_line(int64_t number) {
  return (int)(number > LINE_BYTES ? LINE_BYTES : number < -LINE_BYTES ? -LINE_BYTES : number);
}

static const char *read_number(const char *format, conversion *c, given *arguments, int *number) {
  if (*format == '*') {
    *number = within_line((int)take(arguments, 4));
    c->arguments++;
    return format + 1;
  }
  for (*number = 0; *format >= '0' && *format <= '9'; format++) *number = within_line(*number * 10 + *format - '0');
  return format;
}

static const char *read_conversion(const char *format, conversion *c, given *arguments) {
  *c = (conversion){.length = "", .value_bytes = 4, .precision = -1};
  for (format++; *format && strchr("-+ #0", *format); format++)
    if (!strchr(c->flags, *format)) c->flags[strlen(c->flags)] = *format;
  format = read_number(format, c, arguments, &c->width);
  if (*format == '.') format = read_number(format + 1, c, arguments, &c->precision);
  for (; *format && strchr("lhjzt", *format); format++) {
    if (*format != 'h') c->length = "ll", c->value_bytes = 8;
    else if (c->value_bytes == 4) c->length = *c->length ? "hh" : "h";
  }
  return format;
}

/* Prints a value as the conversion says. */
#define PRINT(out, c, modifier, kind, value) \
  do { \
    char spec[24]; \
    snprintf(spec, sizeof spec, "%%%s*.*%s%c", (c)->flags, modifier, kind); \
    size_t room = LINE_BYTES - (out)->length; \
    int count = snprintf((out)->bytes + (out)->length, room + 1, spec, (c)->width, (c)->precision, value); \
    if (count > 0) (out)->length += (size_t)count < room ? (size_t)count : room; \
  } while (0)

static void print_number(text *out, const conversion *c, char kind, uint64_t value) {
  if (c->value_bytes == 8) PRINT(out, c, "ll", kind, (unsigned long long)value);
  else PRINT(out, c, c->length, kind, (unsigned)value);
}

static void print_real(text *out, const conversion *c, char kind, uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  PRINT(out, c, "", kind, value);
}

/* No more of the string is read than a line holds. */
static void print_string(text *out, conversion *c, const char *value) {
  if (c->precision < 0) c->precision = LINE_BYTES;
  PRINT(out, c, "", 's', value ? value : "(null)");
}

/* Prints one conversion; text that is no conversion is printed unchanged. */
static const char *convert(text *out, const char *format, given *arguments, int *taken) {
  conversion c;
  const char *start = format, *end = read_conversion(format, &c, arguments);
  switch (*end) {
    case '%': put(out, "%", 1); break;
    case 'd': case 'i': case 'u': case 'x': case 'X': case 'o': case 'c':
      if (*end == 'c') c.value_bytes = 4, c.length = "";
      print_number(out, &c, *end, take(arguments, c.value_bytes));
      c.arguments++;
      break;
    case 'f': case 'F': case 'e': case 'E': case 'g': case 'G': case 'a': case 'A':
      print_real(out, &c, *end, take(arguments, 8));
      c.arguments++;
      break;
    case 'p': {
      c.value_bytes = 8;
      if (!strchr(c.flags, '#')) c.flags[strlen(c.flags)] = '#';
      print_number(out, &c, 'x', take(arguments, 8));
      c.arguments++;
      break;
    }
    case 's':
      print_string(out, &c, string_at(arguments->window, take(arguments, 8)));
      c.arguments++;
      break;
    default: put(out, start, (size_t)(end - start)); *taken += c.arguments; return end;
  }
  *taken += c.arguments;
  return end + 1;
}

/* A format may have conversions without end: each looks whether the launch is to end. */
static int print(sg_warp *warp, const char *format, given arguments) {
  text out;
  int taken = 0;
  out.length = 0;
  if (!format) return -1;
  while (*format) {
    if (__builtin_expect(*warp->stop, 0)) sg_stop(warp);
    const char *next = strchrnul(format, '%');
    put(&out, format, (size_t)(next - format));
    format = *next ? convert(&out, next, &arguments, &taken) : next;
  }
  softgpu_write(warp->block->launch->device, out.bytes, out.length);
  return taken;
}

/* The C library and softgpu_write hold locks, for good if the stack ended there: let it end here. */
static __attribute__((noinline)) void need_stack(void) {
  volatile char room[32 << 10];
  room[0] = 0;
  (void)room[0];
}

/* vprintf(format, arguments) in each of the lanes; its result is the number of arguments, as in CUDA. */
void sg_rt_vprintf(sg_warp *warp, const uint64_t *formats, const uint64_t *arguments, uint32_t lanes,
                     uint32_t *results) {
  need_stack();
  for (; lanes; lanes &= lanes - 1) {
    uint32_t lane = (uint32_t)__builtin_ctz(lanes);
    const sg_window *window = warp->block->window;
    results[lane] = (uint32_t)print(warp, string_at(window, formats[lane]), (given){window, arguments[lane]});
  }
}

/* __assertfail(message, file, line, function): the message is from the first of the lanes, and the launch ends. */
void sg_rt_assert(sg_warp *warp, const uint64_t *messages, const uint64_t *files, const uint32_t *lines,
                    const uint64_t *functions, uint32_t lanes) {
  uint32_t lane = (uint32_t)__builtin_ctz(lanes), at[3];
  const uint32_t *block = warp->ctaid;
  const sg_window *window = warp->block->window;
  char said[400];
  need_stack();
  sg_thread_index(warp, lane, at);
  snprintf(said, sizeof said, "%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.",
           string_at(window, files[lane]), lines[lane], string_at(window, functions[lane]), block[0], block[1],
           block[2], at[0], at[1], at[2], string_at(window, messages[lane]));
  softgpu_write(warp->block->launch->device, said, strlen(said));
  softgpu_write(warp->block->launch->device, "\n", 1);
  sg_abandon(warp->block, ASSERT, said);
}
