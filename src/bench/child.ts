import { type ErrorParts, GhostgradError } from '../errors.ts';
import { type Memory, residentMemory, resetPeak } from './memory.ts';
import { type BenchJob, type JobFacts, type Prepared, prepare } from './workload.ts';

/** What the parent says to a child, and what it answers. */
export type ChildRequest = { readonly kind: 'start'; readonly job: BenchJob } | { readonly kind: 'run' } | { readonly kind: 'stop' };
export type ChildReply =
  | { readonly kind: 'ready'; readonly facts: JobFacts }
  | { readonly kind: 'ran'; readonly ms: number } & Memory
  | { readonly kind: 'failed'; readonly parts: ErrorParts };

/** Measures one workload in a process of its own, one run for each request. */
function main(): void {
  let prepared: Prepared | undefined;
  const answer = async (request: ChildRequest): Promise<ChildReply> => {
    if (request.kind === 'start') {
      prepared = await prepare(request.job);
      return { kind: 'ready', facts: prepared.facts };
    }
    if (request.kind === 'stop' || prepared === undefined) {
      process.exit(0);
    }
    resetPeak();
    const before = residentMemory().current;
    const start = performance.now();
    await prepared.run();
    const ms = performance.now() - start;
    const { peak } = residentMemory();
    return { kind: 'ran', ms, peakMiB: peak - before, residentMiB: peak };
  };
  process.on('message', (request: ChildRequest) => {
    answer(request)
      .catch((error: unknown): ChildReply => ({ kind: 'failed', parts: partsOf(error) }))
      .then((reply) => process.send?.(reply), () => undefined);
  });
  // The parent is gone: nobody waits for an answer.
  process.on('disconnect', () => process.exit(0));
}

const partsOf = (error: unknown): ErrorParts =>
  (error instanceof GhostgradError ? error.parts : { what: 'a job of the benchmark failed', found: String(error) });

main();
