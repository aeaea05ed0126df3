import { replanned } from '../../src/audit/gradient-audit.ts';
import type { SourceOf } from '../../src/audit/trials.ts';
import type { Privatised } from '../../src/privacy/index.ts';
import { countsWithin } from '../../src/privacy/quantiles.ts';
import { type Ratchet, restoreRatchet } from '../../src/random/ratchet.ts';
import { type GradientSource, type GradientStep, privateGradients } from '../../src/training/gradients.ts';
import type { StepProgram } from '../../src/training/step.ts';

/**
 * Sources of gradients with mistakes that have been made elsewhere, each by wrapping the real one. What they hand out is what
 * such an implementation would release.
 */
export const plantedBugs = {
  /** σ/2 where σ was accounted for. */
  'noise halved': ({ plan, ...parts }) =>
    privateGradients({ ...parts, plan: replanned(plan, { noiseMultiplier: plan.noiseMultiplier / 2, ...seedOf(parts.keys) }) }),

  /** The last parameter is left out of clipping, in its norm and in its weight. */
  'clipping skipped on one layer': ({ program, ...parts }) =>
    privateGradients({
      ...parts,
      program: ran(program, async (parameters, batch, thresholds) => {
        const last = program.parameters.at(-1)!;
        const open = await unclipped(program, parameters, batch, thresholds);
        const clipped = await program.run(open.parameters, batch, thresholds);
        return { ...clipped, sums: new Map([...clipped.sums, [last, open.sums.get(last)!]]) };
      }),
    }),

  /** The noised sum over the number of examples that were drawn. */
  'normaliser by true batch size': (parts) =>
    released(privateGradients(parts), ({ gradient, losses }) => scaled(gradient, parts.plan.normaliser / Math.max(1, losses.length))),

  /** Every second step is one that was interrupted and taken again: its examples are drawn anew, its noise is not. */
  'noise reused on resume': ({ keys, ...parts }) => privateGradients({ ...parts, keys: resumed(keys) }),

  /** The mean gradient of a micro-batch is clipped, instead of each. */
  'micro-batch means clipped': ({ program, ...parts }) => privateGradients({ ...parts, program: clippingMeans(program) }),

  /** Three times the rate that was accounted for. */
  'sampling at another rate': ({ plan, ...parts }) =>
    released(
      privateGradients({ ...parts, plan: replanned(plan, { batchSize: Math.min(plan.datasetSize, 3 * plan.batchSize), ...seedOf(parts.keys) }) }),
      ({ gradient }) => scaled(gradient, Math.min(plan.datasetSize / plan.batchSize, 3)),
    ),

  /** Thresholds follow the counts themselves. */
  'adaptive counts without noise': (parts) => {
    const source = privateGradients(parts);
    return released(source, ({ gradient, norms }) => {
      const counts = countsWithin(norms, (gradient as Privatised).groups);
      return { ...gradient, fractions: Array.from(counts, (count) => count / parts.plan.normaliser + 0.5) };
    });
  },
} as const satisfies Readonly<Record<string, SourceOf>>;

export type PlantedBug = keyof typeof plantedBugs;

/** A plan takes keys that are seeded as it is; which seed does not matter to it. */
const seedOf = ({ seeded }: Ratchet): { readonly seed?: number } => (seeded ? { seed: 0 } : {});

const ran = (program: StepProgram, run: StepProgram['run']): StepProgram => ({ ...program, run });

/** The source, with something done to what it hands out. */
const released = (source: GradientSource, change: (step: GradientStep) => GradientStep['gradient']): GradientSource => ({
  get groups() {
    return source.groups;
  },
  get keys() {
    return source.keys;
  },
  next: async (parameters) => {
    const step = await source.next(parameters);
    return { ...step, gradient: change(step) };
  },
  close: () => source.close(),
});

const scaled = (gradient: GradientStep['gradient'], factor: number): Privatised => ({
  ...(gradient as Privatised),
  gradients: new Map([...gradient.gradients].map(([name, values]) => [name, values.map((x) => x * factor)])),
});

function resumed(keys: Ratchet): Ratchet {
  let saved: Uint8Array | undefined;
  return {
    get step() {
      return keys.step;
    },
    seeded: keys.seeded,
    advance: () => {
      if (saved === undefined) {
        saved = keys.serialise();
        return keys.advance();
      }
      const { noise } = restoreRatchet(saved).advance();
      saved = undefined;
      return { ...keys.advance(), noise };
    },
    serialise: () => keys.serialise(),
    erase: () => keys.erase(),
  };
}

/** Thresholds so far above all norms that nothing is clipped. */
const unclipped = (program: StepProgram, ...[parameters, batch, thresholds]: Parameters<StepProgram['run']>) =>
  program.run(parameters, batch, thresholds.map((threshold) => 1e5 * threshold));

function clippingMeans(program: StepProgram): StepProgram {
  const { microBatch, groups } = program;
  return ran(program, async (parameters, batch, thresholds) => {
    const totals = new Map<string, Float32Array>();
    const losses = new Float32Array(batch.size);
    const norms = new Float32Array(batch.size * groups.length);
    let current = parameters;
    for (let start = 0; start < batch.size || totals.size === 0; start += microBatch) {
      const size = Math.min(microBatch, batch.size - start);
      const part = { size, feeds: (from: number, count: number, units: number) => batch.feeds(start + from, count, units) };
      const found = await unclipped(program, current, part, thresholds);
      current = found.parameters;
      losses.set(found.losses, start);
      norms.set(found.norms, start * groups.length);
      groups.forEach(({ parameters: names }, k) => {
        const length = Math.hypot(...names.map((name) => Math.hypot(...found.sums.get(name)!))) / Math.max(1, size);
        const weight = Math.min(1, thresholds[k]! / Math.max(length, 1e-30)) / Math.max(1, size);
        for (const name of names) {
          const mean = found.sums.get(name)!.map((x) => x * weight);
          const total = totals.get(name);
          totals.set(name, total === undefined ? mean : total.map((x, i) => x + mean[i]!));
        }
      });
    }
    return { sums: totals, remainders: new Map(), parts: 1, losses, norms, groups: groups.length, parameters: current };
  });
}
