import { availableParallelism } from 'node:os';

/** Threads used unless told otherwise: one for each core the process may use. */
export const defaultThreads = (): number => availableParallelism();
