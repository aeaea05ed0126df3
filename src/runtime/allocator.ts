/**
 * Settings of the C library's allocator (glibc) under which a tensor takes the memory that another has freed. By default
 * a large tensor is memory that the system hands out, zeroed page by page, and takes back, at every operator of every
 * step: where page faults are dear, as on many virtual machines, that takes longer than the arithmetic (BENCHMARKS.md).
 *
 * Tensors are aligned, for which the library cuts a little off either end of a free piece. Those ends must join the piece
 * again when it is freed, or the next tensor of the same size does not fit in: so small pieces are not set aside (`mxfast`,
 * `tcache_count`).
 *
 * Where the system gives huge pages to those who ask (`madvise`), tensors lie in them (`hugetlb`): fewer page faults and
 * fewer misses of the processor's table of pages, for a tenth of the time of a large head's step.
 *
 * They are read when a process starts, so they belong in the environment that it is started with; the command line's
 * first line has the same. Other allocators ignore them.
 */
export const allocatorSettings = {
  MALLOC_ARENA_MAX: '1', MALLOC_MMAP_MAX_: '0', MALLOC_TRIM_THRESHOLD_: '17179869184',
  GLIBC_TUNABLES: 'glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0:glibc.malloc.hugetlb=1',
} as const;
