/**
 * Settings of the C library's allocator (glibc) under which a tensor takes the memory that another has freed. By default
 * a large tensor is memory that the system hands out, zeroed page by page, and takes back, at every operator of every
 * step: where page faults are dear, as on many virtual machines, that takes longer than the arithmetic (BENCHMARKS.md).
 *
 * They are read when a process starts, so they belong in the environment that it is started with; the command line's
 * first line has the same. Other allocators ignore them.
 */
export const allocatorSettings = {
  MALLOC_ARENA_MAX: '1', MALLOC_MMAP_MAX_: '0', MALLOC_TRIM_THRESHOLD_: '17179869184',
} as const;
