/* Growing lists of graph nodes, used as edges, tails and orders. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

bool nodes_append(struct nodes *list, CUgraphNode node) {
  if (list->count == list->capacity) {
    size_t capacity = list->capacity ? 2 * list->capacity : 4;
    CUgraphNode *items = realloc(list->items, capacity * sizeof *items);
    if (items == NULL) return false;
    list->items = items;
    list->capacity = capacity;
  }
  list->items[list->count++] = node;
  return true;
}

bool nodes_have(const struct nodes *set, CUgraphNode node) {
  for (size_t i = 0; i < set->count; i++)
    if (set->items[i] == node) return true;
  return false;
}

bool nodes_add(struct nodes *set, CUgraphNode node) { return nodes_have(set, node) || nodes_append(set, node); }

void nodes_drop(struct nodes *set, CUgraphNode node) {
  size_t kept = 0;
  for (size_t i = 0; i < set->count; i++)
    if (set->items[i] != node) set->items[kept++] = set->items[i];
  set->count = kept;
}

bool nodes_copy(struct nodes *to, const struct nodes *from) {
  to->count = 0;
  for (size_t i = 0; i < from->count; i++)
    if (!nodes_append(to, from->items[i])) return false;
  return true;
}

void nodes_clear(struct nodes *set) {
  free(set->items);
  *set = (struct nodes){0};
}
