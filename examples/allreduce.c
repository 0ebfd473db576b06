/* Sums four numbers over ranks that are processes, on this machine or, with a host in the context's options,
 * on others:
 *   allreduce 0 2        prints an id; in another terminal:
 *   allreduce 1 2 ID */
#include <cenote/cenote.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, cenote_last_error());
  return 1;
}

int main(int argc, char** argv) {
  if (argc < 3) return fprintf(stderr, "usage: %s RANK RANKS [ID]\n", argv[0]), 2;
  cenote_context* context;
  cenote_comm* comm;
  cenote_request request = {0};
  cenote_comm_options options = {.size = sizeof options};
  options.rank = (uint32_t)atoi(argv[1]);
  options.ranks = (uint32_t)atoi(argv[2]);
  if (cenote_context_create(NULL, &context)) return failed("context");
  if (options.rank == 0 && cenote_unique_id_create(context, &options.id)) return failed("unique id");
  if (options.rank == 0) printf("%s\n", options.id.text), fflush(stdout);
  if (options.rank != 0 && argc > 3) snprintf(options.id.text, sizeof options.id.text, "%s", argv[3]);
  if (cenote_comm_create(context, &options, &comm)) return failed("communicator");

  float values[4] = {1, 2, 3, (float)options.rank};
  if (cenote_allreduce(comm, values, values, 4, CENOTE_FLOAT32, CENOTE_SUM, &request))
    return failed("allreduce");
  if (cenote_wait(comm, &request, 0)) return failed("wait");
  printf("rank %u: %g %g %g %g\n", options.rank, values[0], values[1], values[2], values[3]);

  cenote_comm_destroy(comm);
  cenote_context_destroy(context);
  return 0;
}
