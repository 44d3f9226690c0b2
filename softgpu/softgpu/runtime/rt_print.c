/* printf and assert of compiled kernels, lane after lane. */
#define _GNU_SOURCE
#include "block.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 4096, SPEC_BYTES = 64 }; /* the output of one call is cut off at LINE_BYTES */

typedef struct text {
  char bytes[LINE_BYTES];
  size_t length;
} text;

static void put(text *out, const char *bytes, size_t count) {
  size_t room = sizeof out->bytes - out->length;
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

/* A conversion for C's printf: a copy with arguments in place of every *, and with the length of our values. */
typedef struct conversion {
  char spec[SPEC_BYTES];
  size_t length;
  size_t value_bytes; /* of an integer */
  int arguments;
} conversion;

static void add_to_spec(conversion *c, const char *bytes, size_t count) {
  if (count > sizeof c->spec - 8 - c->length) count = sizeof c->spec - 8 - c->length;
  memcpy(c->spec + c->length, bytes, count);
  c->length += count;
}

static const char *read_conversion(const char *format, conversion *c, given *arguments) {
  size_t longs = 0;
  *c = (conversion){.spec = "%", .length = 1, .value_bytes = 4};
  for (format++; *format && strchr("-+ #0123456789.*lhjzt", *format); format++) {
    if (*format == '*') {
      char number[16];
      add_to_spec(c, number, (size_t)snprintf(number, sizeof number, "%d", (int)take(arguments, 4)));
      c->arguments++;
    } else if (*format == 'l' || *format == 'j' || *format == 'z' || *format == 't') longs++;
    else if (*format == 'h') add_to_spec(c, "h", 1);
    else add_to_spec(c, format, 1);
  }
  if (longs) c->value_bytes = 8;
  return format;
}

static void end_spec(conversion *c, const char *end) {
  memcpy(c->spec + c->length, end, strlen(end) + 1); /* add_to_spec left room */
}

static void print_number(text *out, conversion *c, char kind, uint64_t value) {
  char made[512], end[4] = {kind, 0};
  if (c->value_bytes == 8) memcpy(end, (char[]){'l', 'l', kind, 0}, 4);
  end_spec(c, end);
  int count = c->value_bytes == 8 ? snprintf(made, sizeof made, c->spec, (unsigned long long)value)
                                  : snprintf(made, sizeof made, c->spec, (unsigned)value);
  if (count > 0) put(out, made, (size_t)count < sizeof made ? (size_t)count : sizeof made - 1);
}

static void print_real(text *out, conversion *c, char kind, uint64_t bits) {
  char made[512];
  double value;
  memcpy(&value, &bits, sizeof value);
  end_spec(c, (char[]){kind, 0});
  int count = snprintf(made, sizeof made, c->spec, value);
  if (count > 0) put(out, made, (size_t)count < sizeof made ? (size_t)count : sizeof made - 1);
}

static void print_string(text *out, conversion *c, const char *value) {
  char made[LINE_BYTES];
  end_spec(c, "s");
  int count = snprintf(made, sizeof made, c->spec, value ? value : "(null)");
  if (count > 0) put(out, made, (size_t)count < sizeof made ? (size_t)count : sizeof made - 1);
}

/* Prints one conversion; text that is no conversion is printed unchanged. */
static const char *convert(text *out, const char *format, given *arguments, int *taken) {
  conversion c;
  const char *start = format, *end = read_conversion(format, &c, arguments);
  switch (*end) {
    case '%': put(out, "%", 1); break;
    case 'd': case 'i': case 'u': case 'x': case 'X': case 'o': case 'c':
      if (*end == 'c') c.value_bytes = 4;
      print_number(out, &c, *end, take(arguments, c.value_bytes));
      c.arguments++;
      break;
    case 'f': case 'F': case 'e': case 'E': case 'g': case 'G': case 'a': case 'A':
      print_real(out, &c, *end, take(arguments, 8));
      c.arguments++;
      break;
    case 'p': {
      c.value_bytes = 8;
      add_to_spec(&c, "#", c.length < 2);
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

static int print(const sg_block *block, const char *format, given arguments) {
  text out;
  int taken = 0;
  out.length = 0;
  if (!format) return -1;
  while (*format) {
    const char *next = strchrnul(format, '%');
    put(&out, format, (size_t)(next - format));
    format = *next ? convert(&out, next, &arguments, &taken) : next;
  }
  softgpu_write(block->launch->device, out.bytes, out.length);
  return taken;
}

/* The C library and softgpu_write hold locks, for good if the stack ended there: let it end here. */
static __attribute__((noinline)) void need_stack(void) {
  volatile char room[32 << 10];
  room[0] = 0;
}

/* vprintf(format, arguments) in each of the lanes; its result is the number of arguments, as in CUDA. */
void sg_rt_vprintf(sg_warp *warp, const uint64_t *formats, const uint64_t *arguments, uint32_t lanes,
                     uint32_t *results) {
  need_stack();
  for (; lanes; lanes &= lanes - 1) {
    uint32_t lane = (uint32_t)__builtin_ctz(lanes);
    const sg_window *window = warp->block->window;
    results[lane] = (uint32_t)print(warp->block, string_at(window, formats[lane]), (given){window, arguments[lane]});
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
