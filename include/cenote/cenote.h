/* The C interface of libcenote: communicators whose collectives run over shared memory, RDMA and TCP, on
 * memory of the process and of its CUDA devices, and whose ranks put into and get from each other's memory.
 *
 * General rules
 *  - Every function that can fail returns a cenote_status. CENOTE_SUCCESS is 0. The text of the last failure
 * on the calling thread is cenote_last_error(): it names the stage, the device and the peer, the exact cause,
 * and what can be done.
 *  - Structs that may grow begin with `size`, which the caller sets to sizeof(the struct) as it knows it.
 * Fields beyond that size take their defaults; zero means "default" in every field that says so.
 *  - Handles are made by *_create and ended by *_destroy. Destroying NULL does nothing. No destroy waits for
 * a peer.
 *  - Nothing throws, exits, aborts the process or changes signal handlers; nothing but cenote_launch_find and
 * cenote_comm_create_launched reads the environment.
 *  - Threads: a context may be used by all threads at once. A communicator belongs to one thread at a time
 * (the owner may change with any synchronisation); only cenote_comm_abort may be called from others.
 * Different communicators are independent. The library makes no thread but the one that serves a
 * cenote_unique_id.
 *  - A child of fork() may not use what its parent made: CENOTE_INVALID_ARGUMENT, and nothing is touched.
 * Destroying it there does nothing.
 */
#ifndef CENOTE_CENOTE_H
#define CENOTE_CENOTE_H

#include <stddef.h>
#include <stdint.h>

#include "cenote/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CENOTE_API __attribute__((visibility("default")))
#else
#define CENOTE_API
#endif

/* ---- errors and version ---- */

/** What kind of failure it was; what a program may branch on. New values are added at the end. */
typedef CENOTE_ENUM(cenote_status){
    CENOTE_SUCCESS = 0,
    CENOTE_INVALID_ARGUMENT = 1, /**< the caller asked for something undefined; retrying is useless */
    CENOTE_NOT_SUPPORTED = 2,    /**< defined, but not by this device, transport or build */
    CENOTE_NOT_FOUND = 3,
    CENOTE_ALREADY_EXISTS = 4,
    CENOTE_PERMISSION_DENIED = 5,
    CENOTE_RESOURCE_EXHAUSTED = 6, /**< out of memory, descriptors, queue space */
    CENOTE_DEADLINE_EXCEEDED =
        7,                  /**< a wait ended at its deadline; the text names the rank that held it up */
    CENOTE_CANCELLED = 8,   /**< cenote_comm_abort was called on this rank */
    CENOTE_PEER_FAILED = 9, /**< a rank died, was cut off or gave up; the text names the rank that began it */
    CENOTE_PROTOCOL_ERROR = 10,
    CENOTE_SYSTEM_ERROR = 11,
    CENOTE_DRIVER_ERROR = 12, /**< the GPU driver, or a cenote_device_access of the caller, refused */
    CENOTE_INTERNAL = 13      /**< a bug of the library */
} cenote_status;

/** Text of the last call that failed on this thread; "" if none has. Valid until the next failure on this
 * thread. */
CENOTE_API const char* cenote_last_error(void);

/** "peer failed" for CENOTE_PEER_FAILED. A constant string; "unknown status" for other values. */
CENOTE_API const char* cenote_status_text(cenote_status status);

/** Version as major * 10000 + minor * 100 + patch. Programs built against one major version run with all
 * later minor ones. */
CENOTE_API uint32_t cenote_version(void);

/* ---- context ---- */

/** Owns what its communicators share. Several may live in one process; they know nothing of each other. */
typedef struct cenote_context cenote_context;

typedef struct cenote_context_options {
  size_t size;            /**< sizeof(cenote_context_options) */
  const char* transports; /**< in order of preference: "shm,verbs,tcp" (also the default, NULL) */
  const char* host; /**< address of this machine that TCP listens on and tells its peers; NULL: "127.0.0.1" */
  const char* cuda_library; /**< the CUDA driver's library, by the name or path that the process loads it by;
                                 NULL: "libcuda.so.1"; "": all buffers are host memory */
} cenote_context_options;

/** `options` may be NULL; its strings are copied. Errors: CENOTE_INVALID_ARGUMENT. */
CENOTE_API cenote_status cenote_context_create(const cenote_context_options* options,
                                               cenote_context** context);

/** Ends the context and the unique ids that it made. Destroy its communicators first. */
CENOTE_API void cenote_context_destroy(cenote_context* context);

/* ---- communicators ---- */

/** Names a group that is about to form: plain text without blanks, ending in a 0. One rank creates it and
 * passes it to the others by any channel it trusts (whoever knows it can join). */
typedef struct cenote_unique_id {
  char text[256];
} cenote_unique_id;

/** Creates an id and serves it (on the context's `host`, with a thread) until the context is destroyed: keep
 * the context until cenote_comm_create has returned on every rank. Errors: CENOTE_SYSTEM_ERROR. */
CENOTE_API cenote_status cenote_unique_id_create(cenote_context* context, cenote_unique_id* id);

/** One rank's membership in a group. */
typedef struct cenote_comm cenote_comm;

typedef struct cenote_comm_options {
  size_t size;         /**< sizeof(cenote_comm_options) */
  uint32_t rank;       /**< 0 .. ranks - 1 */
  uint32_t ranks;      /**< of the group, at least 1 */
  cenote_unique_id id; /**< the same at all ranks; not looked at when ranks is 1 */
  const char*
      algorithm; /**< NULL or "auto": by size; or "ring", "recursive_doubling". The same at all ranks */
  uint32_t init_timeout_ms;      /**< for cenote_comm_create; 0: 30 s */
  uint32_t operation_timeout_ms; /**< for each operation, from its start; 0: 30 s */
  uint32_t no_check; /**< 1: do not compare on each operation what the ranks call. The same at all ranks */
} cenote_comm_options;

/** Collective: returns when all ranks have called it. Errors: CENOTE_DEADLINE_EXCEEDED (names the missing
 * ranks), CENOTE_INVALID_ARGUMENT (also where ranks disagree about an option: names rank and option),
 * CENOTE_ALREADY_EXISTS (that rank is there, or the group stands already), CENOTE_PERMISSION_DENIED (the id's
 * secret is not that of the group), CENOTE_PEER_FAILED (a rank, or the process that serves the id, has gone),
 * CENOTE_SYSTEM_ERROR (also where nobody serves the id any more), CENOTE_NOT_SUPPORTED,
 * CENOTE_RESOURCE_EXHAUSTED. A rank that contradicts the group, by a number that is taken or another `ranks`,
 * ends it: the others get CENOTE_INVALID_ARGUMENT, which names the rank and what differs. A `rank` that is
 * not below `ranks` is refused where it is, and is missing to the others. */
CENOTE_API cenote_status cenote_comm_create(cenote_context* context, const cenote_comm_options* options,
                                            cenote_comm** comm);

/** Ends this rank's membership without waiting. What is complete at this rank the others complete too;
 * operations that are not end at the other ranks with CENOTE_PEER_FAILED. */
CENOTE_API void cenote_comm_destroy(cenote_comm* comm);

/** Ends everything in flight with CENOTE_CANCELLED here and CENOTE_PEER_FAILED at the others, who are told
 * `reason` (may be NULL). Never waits. From any thread, while the communicator exists. */
CENOTE_API void cenote_comm_abort(cenote_comm* comm, const char* reason);

/** This rank's number; 0 for NULL. From any thread. */
CENOTE_API uint32_t cenote_comm_rank(const cenote_comm* comm);
/** How many ranks the group has; 0 for NULL. From any thread. */
CENOTE_API uint32_t cenote_comm_ranks(const cenote_comm* comm);

/* ---- communicators of a launcher ---- */

/* Under mpirun (or whatever else speaks PMIx), srun and torchrun a program needs no id: the launcher says who
 * it is, and the ranks find each other. docs/launching.md says how, and what the launchers must set. */

/** What the launcher says of this process. */
typedef struct cenote_launch {
  size_t size; /**< sizeof(cenote_launch), set by the caller */
  uint32_t rank;
  uint32_t ranks;
  uint32_t local_rank;  /**< among the ranks of this machine: which of its GPUs to take */
  uint32_t local_ranks; /**< ranks of this machine */
  char launcher[16];    /**< "pmix", "slurm", "torchrun" or "none" */
} cenote_launch;

typedef struct cenote_launch_options {
  size_t size;          /**< sizeof(cenote_launch_options) */
  const char* launcher; /**< "auto", "pmix", "slurm", "torchrun", or "none": a group of one; NULL: the setting
                             `launcher` (CENOTE_LAUNCHER), which is auto */
  const char* group;    /**< NULL: "world". Each group that a job forms has a name of its own, also one that
                             takes the place of another. 1 to 64 letters, digits and ._- */
  uint32_t port; /**< that rank 0 meets the others at; 0: the setting `launcher_port`, which is to choose. The
                      same at all ranks */
  const char* algorithm;         /**< this and the others as in cenote_comm_options */
  uint32_t init_timeout_ms;      /**< for cenote_comm_create_launched; 0: 30 s */
  uint32_t operation_timeout_ms; /**< for each operation, from its start; 0: 30 s */
  uint32_t no_check;             /**< 1: do not compare what the ranks call. The same at all ranks */
} cenote_launch_options;

/** Who this process is, from its launcher; `launcher` as in cenote_launch_options. Under PMIx it asks the
 * server on this machine, for at most 30 s, and the context stays connected with it to its end: destroy it
 * before the program ends, or mpirun takes that for a crash. Elsewhere it waits for nobody. Any thread.
 * Errors: CENOTE_NOT_FOUND (no launcher started it: names what was looked for), CENOTE_INVALID_ARGUMENT (a
 * variable is missing, is no number or contradicts another: names it), CENOTE_NOT_SUPPORTED (no
 * libpmix.so.2), CENOTE_SYSTEM_ERROR (no PMIx server). */
CENOTE_API cenote_status cenote_launch_find(cenote_context* context, const char* launcher,
                                            cenote_launch* launch);

/** Collective over all processes that the launcher started: makes their communicator. `options` may be NULL;
 * `*comm` is the caller's, as if cenote_comm_create had made it. Ranks on one machine meet at 127.0.0.1.
 * Ranks on several use the context's `host` where it was given; otherwise rank 0 the address that its
 * machine's name stands for, and the others that by which they reach it. Errors: those of cenote_launch_find
 * and cenote_comm_create; CENOTE_DEADLINE_EXCEEDED names the missing ranks, rank 0 too, and so does
 * CENOTE_PEER_FAILED where rank 0's deadline passes first. */
CENOTE_API cenote_status cenote_comm_create_launched(cenote_context* context,
                                                     const cenote_launch_options* options,
                                                     cenote_comm** comm);

/* ---- operations ---- */

/** An operation in flight. A plain value; {0} = nothing in flight. Its buffers belong to the library until
 *  cenote_test or cenote_wait has ended it, or the communicator is destroyed. */
typedef struct cenote_request {
  uint64_t sequence;
} cenote_request;

/* Buffers may lie in host memory or in memory of a CUDA device, each as it comes: the library asks the CUDA
 * driver that the process has loaded (it loads none itself; without one all memory is host memory, and no
 * error). Device memory is read and written by copies through pinned memory, in a stream of the library's
 * own, and reduced by kernels where it lies. So work of other streams on the buffers must be done before the
 * call; or the call is told a stream (cenote_*_stream). When an operation is complete its result has arrived:
 * work that is put into any stream afterwards sees it. What the driver refuses, and device memory that ends
 * before the buffer does, is CENOTE_DRIVER_ERROR. The buffers' CUDA contexts outlive the communicator.
 *
 * All ranks start the same operations in the same order. Starting never blocks; cenote_test and cenote_wait
 * make progress. Several operations may be in flight on one communicator. After a failure the communicator is
 * broken: every later call returns the first failure, and the contents of buffers in flight are undefined.
 * Ranks that make different calls all get CENOTE_INVALID_ARGUMENT, which says what differs and between whom.
 * `count` is in elements of `type`. Errors of all four: CENOTE_INVALID_ARGUMENT, and those of a broken
 * communicator. */

/** recv[i] = op over all ranks of send[i], for `count` elements; the same bits at every rank, and on every
 * run, whatever the transport. send and recv are the same buffer, or do not overlap. CENOTE_MIN and
 * CENOTE_MAX propagate NaN (IEEE 754-2019 minimum and maximum); integer sums wrap around; 16-bit floats are
 * summed in float, rounded each time. */
CENOTE_API cenote_status cenote_allreduce(cenote_comm* comm, const void* send, void* recv, size_t count,
                                          cenote_type type, cenote_op op, cenote_request* request);

/** recv = send of rank 0, send of rank 1, ...: `count` elements from each, count * ranks in recv. In place:
 * send is recv + rank * count elements. */
CENOTE_API cenote_status cenote_allgather(cenote_comm* comm, const void* send, void* recv, size_t count,
                                          cenote_type type, cenote_request* request);

/** `count` elements of `buffer` at rank `root` come to `buffer` at every rank. */
CENOTE_API cenote_status cenote_broadcast(cenote_comm* comm, void* buffer, size_t count, cenote_type type,
                                          uint32_t root, cenote_request* request);

/** Complete when every rank has started it. */
CENOTE_API cenote_status cenote_barrier(cenote_comm* comm, cenote_request* request);

/* The same after a stream (a CUstream or cudaStream_t; NULL: the default stream) of the buffers' CUDA
 * context: the call returns at once; the buffers are not touched until all work that was in the stream at the
 * call is done. That is looked at in cenote_test and cenote_wait: the stream itself does not wait for the
 * result, the request says when it is there, and work that needs it is put into the stream after that. When
 * earlier work failed, the operation fails with it. Errors: also CENOTE_NOT_SUPPORTED (the process has loaded
 * no CUDA driver). */

/** cenote_allreduce after `stream`. */
CENOTE_API cenote_status cenote_allreduce_stream(cenote_comm* comm, const void* send, void* recv,
                                                 size_t count, cenote_type type, cenote_op op, void* stream,
                                                 cenote_request* request);
/** cenote_allgather after `stream`. */
CENOTE_API cenote_status cenote_allgather_stream(cenote_comm* comm, const void* send, void* recv,
                                                 size_t count, cenote_type type, void* stream,
                                                 cenote_request* request);
/** cenote_broadcast after `stream`. */
CENOTE_API cenote_status cenote_broadcast_stream(cenote_comm* comm, void* buffer, size_t count,
                                                 cenote_type type, uint32_t root, void* stream,
                                                 cenote_request* request);

/* The same on memory that only the caller knows a way to. */

/** How the library reaches device memory: copies that have arrived when they return. 0 = success, anything
 * else is reported as the driver's code. Called on the thread that calls cenote_*, never after the
 * communicator's end. */
typedef struct cenote_device_access {
  size_t size; /**< sizeof(cenote_device_access) */
  void* user;
  int (*read)(void* user, void* host, uint64_t device, size_t bytes);
  int (*write)(void* user, uint64_t device, const void* host, size_t bytes);
} cenote_device_access;

/** A buffer: host memory when `access` is NULL, device memory otherwise. */
typedef struct cenote_buffer {
  size_t size;                        /**< sizeof(cenote_buffer) */
  uint64_t address;                   /**< host pointer, or device address */
  size_t bytes;                       /**< that may be touched from there on */
  const cenote_device_access* access; /**< copied during the call, not kept */
} cenote_buffer;

/** cenote_allreduce of described buffers. */
CENOTE_API cenote_status cenote_allreduce_buffers(cenote_comm* comm, const cenote_buffer* send,
                                                  const cenote_buffer* recv, size_t count, cenote_type type,
                                                  cenote_op op, cenote_request* request);
/** cenote_allgather of described buffers. */
CENOTE_API cenote_status cenote_allgather_buffers(cenote_comm* comm, const cenote_buffer* send,
                                                  const cenote_buffer* recv, size_t count, cenote_type type,
                                                  cenote_request* request);
/** cenote_broadcast of a described buffer. */
CENOTE_API cenote_status cenote_broadcast_buffer(cenote_comm* comm, const cenote_buffer* buffer, size_t count,
                                                 cenote_type type, uint32_t root, cenote_request* request);

/** *done = 1: complete, and the request is {0} again; 0: call again. Makes progress, never blocks. A request
 * of {0} is complete, unless the communicator is broken. Errors: how the operation failed (the request is
 * then {0}); on a broken communicator its first failure, for {0} too. */
CENOTE_API cenote_status cenote_test(cenote_comm* comm, cenote_request* request, int* done);

/** Waits until the operation is complete, its deadline has passed, or `timeout_ms` have (0: only its own
 * deadline). Spins briefly, then sleeps in the kernel. A wait that ends at `timeout_ms`
 * (CENOTE_DEADLINE_EXCEEDED) breaks the communicator, as the operation's own deadline does: to look whether
 * it is complete, cenote_test. Errors: as cenote_test. */
CENOTE_API cenote_status cenote_wait(cenote_comm* comm, cenote_request* request, uint32_t timeout_ms);

/* ---- put, get and signals ---- */

/* One-sided: a rank writes and reads memory of another, who makes no call for it but those that move its
 * communicator forward (cenote_test, cenote_wait, cenote_signal_count, cenote_signal_wait, cenote_progress).
 * What a target that makes none has nevertheless received depends on the transport: over TCP, nothing.
 *
 * Bytes of a put are in the target's memory when a signal that the same rank gave after it, or with it, has
 * been counted there (cenote_signal_count, cenote_signal_wait). Nothing else says so: neither the request,
 * whose end means that the caller's buffer may be used again, nor a barrier. A put, then a get of the same
 * rank from the same target: the get reads what was put.
 *
 * Requests are those of collectives, for cenote_test and cenote_wait, and end in any order. At most 1024 are
 * in flight on a communicator, fewer where a network's queue is shorter: starting one more is
 * CENOTE_RESOURCE_EXHAUSTED, starts nothing and breaks nothing. What does not lie inside the target's part is
 * CENOTE_INVALID_ARGUMENT before anything moves, and breaks nothing either. Every other failure breaks the
 * communicator, as a collective's does: a target that died is CENOTE_PEER_FAILED and named; what is not
 * complete after the communicator's operation timeout, or the timeout of cenote_wait, is
 * CENOTE_DEADLINE_EXCEEDED. Threads: those of the communicator. */

/** Memory of every rank that all ranks of a communicator may write and read: each has a part. */
typedef struct cenote_window cenote_window;

typedef struct cenote_window_options {
  size_t size;  /**< sizeof(cenote_window_options) */
  size_t bytes; /**< of this rank's part; 0: it has none. Ranks may differ */
  void* memory; /**< NULL: the library allocates it, zeroed and page aligned. Otherwise the caller's own
                     `bytes`, which outlive the window: host memory (not with shared memory among the
                     transports), or, over RDMA, memory of a CUDA device */
  uint32_t timeout_ms; /**< for cenote_window_create; 0: 30 s */
} cenote_window_options;

/** Collective: returns when all ranks have called it; from then on each is connected with every other,
 * and over shared memory reaches its part without a call of its. Errors: those of a collective; where a rank
 * cannot make its part, all get its status, and it is named (CENOTE_NOT_SUPPORTED, CENOTE_RESOURCE_EXHAUSTED,
 * ...): the communicator is not broken by that. */
CENOTE_API cenote_status cenote_window_create(cenote_comm* comm, const cenote_window_options* options,
                                              cenote_window** window);

/** Ends this rank's part at once, without waiting: what others still put there, or get from there, fails with
 * them and touches nothing here. So meet at a barrier first. Before the communicator is destroyed. */
CENOTE_API void cenote_window_destroy(cenote_window* window);

/** This rank's part (a device address where the caller gave one); NULL if it has none. Lives as long as the
 * window, or as the caller's own memory. */
CENOTE_API void* cenote_window_memory(const cenote_window* window);

/** Bytes of the part of `rank`; 0 for a rank that there is not. */
CENOTE_API size_t cenote_window_bytes(const cenote_window* window, uint32_t rank);

/** A put that signals nothing. */
#define CENOTE_NO_SIGNAL 0xffffffffU
/** Counters that each rank has for each other: 0 .. CENOTE_SIGNALS - 1, for all windows of a communicator. */
#define CENOTE_SIGNALS 32U

/** Writes `bytes` of `src`, host memory, to `offset` in the part of `rank` (which may be this one), and then
 * adds 1 to its counter `signal` for this rank. `src` is not changed before the request ends. */
CENOTE_API cenote_status cenote_put(cenote_window* window, uint32_t rank, uint64_t offset, const void* src,
                                    size_t bytes, uint32_t signal, cenote_request* request);

/** Reads `bytes` at `offset` in the part of `rank` into `dst`, host memory: they are there when the request
 * ends. */
CENOTE_API cenote_status cenote_get(cenote_window* window, uint32_t rank, uint64_t offset, void* dst,
                                    size_t bytes, cenote_request* request);

/** Adds 1 to counter `signal` of `rank` for this rank: after all that this rank has put there. Errors: also
 * CENOTE_INVALID_ARGUMENT while the communicator has had no window, which connects its ranks. */
CENOTE_API cenote_status cenote_signal(cenote_comm* comm, uint32_t rank, uint32_t signal,
                                       cenote_request* request);

/** *count = how often `rank` has added to this rank's counter `signal`, from the communicator's beginning:
 * what it had put before may be read. Makes progress, never blocks. Errors as cenote_signal; *count is then
 * what had arrived before the failure. */
CENOTE_API cenote_status cenote_signal_count(cenote_comm* comm, uint32_t rank, uint32_t signal,
                                             uint64_t* count);

/** Waits until that is `count` or more. `timeout_ms` 0, or more than it: the communicator's operation
 * timeout; a wait that ends there (CENOTE_DEADLINE_EXCEEDED) breaks nothing and may be made again. What has
 * arrived succeeds on a broken communicator too. Errors: also CENOTE_PEER_FAILED when `rank` has ended and
 * the signal has not come. */
CENOTE_API cenote_status cenote_signal_wait(cenote_comm* comm, uint32_t rank, uint32_t signal, uint64_t count,
                                            uint32_t timeout_ms);

/** Moves all that is in flight forward, never blocks: for a rank that has nothing to wait for, but serves
 * others. */
CENOTE_API cenote_status cenote_progress(cenote_comm* comm);

#ifdef __cplusplus
}
#endif
#endif
