/* Sums four numbers over the ranks that a launcher starts; nobody passes an id around:
 *   mpirun -n 4 launched
 *   srun -n 4 launched
 *   torchrun --no-python --nproc-per-node 4 launched
 *   CENOTE_LAUNCHER=none launched        one rank */
#include <cenote/cenote.h>
#include <stdio.h>

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, cenote_last_error());
  return 1;
}

int main(void) {
  cenote_launch launch = {.size = sizeof launch};
  cenote_context* context;
  cenote_comm* comm;
  cenote_request request = {0};
  if (cenote_context_create(NULL, &context)) return failed("context");
  if (cenote_launch_find(context, NULL, &launch)) return failed("launcher");
  /* Here a program with GPUs takes number launch.local_rank of its machine. */
  if (cenote_comm_create_launched(context, NULL, &comm)) return failed("communicator");

  float values[4] = {1, 2, 3, (float)launch.rank};
  if (cenote_allreduce(comm, values, values, 4, CENOTE_FLOAT32, CENOTE_SUM, &request))
    return failed("allreduce");
  if (cenote_wait(comm, &request, 0)) return failed("wait");
  printf("rank %u of %u, %u of %u here, by %s: %g %g %g %g\n", launch.rank, launch.ranks, launch.local_rank,
         launch.local_ranks, launch.launcher, values[0], values[1], values[2], values[3]);

  cenote_comm_destroy(comm);
  cenote_context_destroy(context);
  return 0;
}
