/* Launches of graph instances: their steps, one after the other. */
#include "races.h"

#include <stdlib.h>

static void expect_records_locked(CUgraphExec exec, fence *launch) {
  for (const step *s = exec->steps; s < exec->steps + exec->step_count; s++) {
    if (s->op.kind == OP_RECORD) event_expect_locked(s->op.event, launch);
    if (s->op.kind == OP_EXEC) expect_records_locked(s->op.exec, launch);
  }
}

void exec_follow_locked(CUgraphExec exec, moment *order) {
  for (const step *s = exec->steps; s < exec->steps + exec->step_count; s++) {
    if (s->op.kind == OP_EXEC) exec_follow_locked(s->op.exec, order);
    fence *f = s->op.kind == OP_WAIT ? s->op.event->fence : NULL;
    if (f != NULL && f->moment != NULL) moment_join(order, f->moment);
  }
}

/* The notes of a launch about its steps, by their places. */
typedef struct notes {
  uint32_t *order;       /* in which they run */
  int64_t *ends;         /* in the model: a step begins when the steps that it needs have ended */
  sg_touched *touched; /* in strict mode, else NULL */
} notes;

static CUresult run_step(CUgraphExec exec, uint32_t i, CUcontext ctx, const notes *n) {
  const step *s = &exec->steps[i];
  sg_touched *outer = touching;
  int64_t began = n->ends[exec->step_count];
  for (uint32_t j = 0; j < s->needs_count; j++) {
    int64_t need = n->ends[exec->position[exec->needs[s->needs_from + j]]];
    if (need > began) began = need;
  }
  model_set_clock(began);
  if (n->touched != NULL) touching = &n->touched[i];
  CUresult status = s->enabled ? op_run(&s->op, ctx) : CUDA_SUCCESS;
  touching = outer;
  n->ends[i] = model_clock();
  return status;
}

/* Runs the steps one after the other; in modelled time, steps without edges between them run at once. */
static CUresult run_noting(CUgraphExec exec, CUcontext ctx, const notes *n) {
  CUresult status = CUDA_SUCCESS;
  int64_t end = n->ends[exec->step_count] = model_clock();
  bool shuffled = atomic_load_explicit(&strict, memory_order_relaxed);
  for (uint32_t i = 0; i < exec->step_count; i++) n->order[i] = i;
  if (shuffled && !strict_order(exec, n->order))
    status = fail(CUDA_ERROR_OUT_OF_MEMORY, "no host memory for an order");
  for (size_t i = 0; i < exec->step_count && status == CUDA_SUCCESS; i++) {
    status = run_step(exec, n->order[i], ctx, n);
    if (n->ends[n->order[i]] > end) end = n->ends[n->order[i]];
  }
  model_set_clock(end);
  return status;
}

/* Adds the bytes that the steps touched to those of the launch. */
static CUresult gather_touched(CUgraphExec exec, CUcontext ctx, sg_touched *touched) {
  for (size_t i = 0; i < exec->step_count; i++) sg_touched_tidy(&touched[i]);
  bool orderly = race_compare_steps(exec, touched);
  for (size_t i = 0; i < exec->step_count; i++) {
    sg_touched_add_all(touching, &touched[i]);
    sg_touched_free(&touched[i]);
  }
  return orderly ? CUDA_SUCCESS : context_fail(ctx, CUDA_ERROR_LAUNCH_FAILED);
}

static CUresult run_carefully(CUgraphExec exec, CUcontext ctx) {
  notes n = {.order = malloc((exec->step_count + 1) * sizeof *n.order),
             .ends = malloc((exec->step_count + 1) * sizeof *n.ends),
             .touched = touching != NULL ? calloc(exec->step_count + 1, sizeof *n.touched) : NULL};
  bool memory = n.order != NULL && n.ends != NULL && (touching == NULL || n.touched != NULL);
  CUresult status =
      memory ? run_noting(exec, ctx, &n) : fail(CUDA_ERROR_OUT_OF_MEMORY, "no host memory to run a graph");
  if (n.touched != NULL && memory) {
    CUresult races = gather_touched(exec, ctx, n.touched);
    status = status == CUDA_SUCCESS ? races : status;
  }
  free(n.order);
  free(n.ends);
  free(n.touched);
  return status;
}

CUresult exec_run(CUgraphExec exec, CUcontext ctx) {
  if (__builtin_expect(exec->conditions != NULL, 0) && exec->outermost) conditions_begin(exec->conditions);
  bool careful = ctx->dev->model != NULL || atomic_load_explicit(&strict, memory_order_relaxed);
  if (__builtin_expect(careful, 0)) return run_carefully(exec, ctx);
  CUresult status = CUDA_SUCCESS;
  const step *end = exec->steps + exec->step_count;
  for (const step *s = exec->steps; s < end && status == CUDA_SUCCESS; s++)
    if (s->enabled) status = op_run(&s->op, ctx);
  return status;
}

/* After a launch is queued: it keeps the instance, and the events that it will record get its fence. */
void exec_launched_locked(CUgraphExec exec, fence *launch) {
  atomic_fetch_add(&exec->references, 1);
  if (exec->records) expect_records_locked(exec, launch);
}
