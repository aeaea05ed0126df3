import { GhostgradError } from '../errors.ts';

/** Parameters whose joint per-example gradient is clipped to one L2 norm. */
export interface Group {
  readonly name: string;
  /** The threshold C_k: L2 norm that one privacy unit's gradient of this group is clipped to. */
  readonly norm: number;
  /**
   * The quantile of the norms as estimated so far, under adaptive thresholds: C_k before it was brought to a joint norm.
   * Default: C_k.
   */
  readonly estimate?: number | undefined;
  readonly parameters: readonly string[];
  /** d_k: trainable numbers in all of the parameters together. */
  readonly size: number;
}

/** A partition of the trainable parameters. One group is flat clipping. */
export type Groups = readonly Group[];

/** Flat clipping: all parameters, of `size` numbers together, in one group of threshold `norm`. */
export const flatGroup = (parameters: readonly string[], norm: number, size: number): Groups =>
  groupsOf([{ name: 'all', norm, parameters, size }]);

/**
 * Checked and frozen groups. Throws GhostgradError for a threshold that is not positive and finite, a repeated
 * name, a group without parameters or without numbers, or a parameter in two groups.
 */
export function groupsOf(groups: readonly Group[]): Groups {
  if (groups.length === 0)
    throw new GhostgradError({ what: 'no clipping group', expected: 'at least one group of parameters' });
  const names = new Set<string>();
  const owner = new Map<string, string>();
  for (const { name, norm, estimate = norm, parameters, size } of groups) {
    const where = `clipping group "${name}"`;
    if (names.has(name)) throw new GhostgradError({ what: 'two clipping groups of one name', where });
    names.add(name);
    if (!(norm > 0 && Number.isFinite(norm) && estimate > 0 && Number.isFinite(estimate))) {
      throw new GhostgradError({
        what: 'clipping norm out of range',
        where,
        found: String(norm > 0 && Number.isFinite(norm) ? estimate : norm),
        expected: 'a finite number above 0',
        fix: 'without a finite clipping norm there is no bound that noise could be scaled to',
      });
    }
    if (parameters.length === 0) throw new GhostgradError({ what: 'a clipping group without parameters', where });
    if (!(Number.isSafeInteger(size) && size >= 1)) {
      throw new GhostgradError({
        what: 'size of a clipping group out of range',
        where,
        found: String(size),
        expected: 'how many numbers its parameters hold, at least 1',
      });
    }
    for (const parameter of parameters) {
      const other = owner.get(parameter);
      if (other !== undefined) {
        throw new GhostgradError({
          what: `parameter "${parameter}" is in two clipping groups`,
          where,
          found: `"${other}" and "${name}"`,
          expected: 'one group each',
        });
      }
      owner.set(parameter, name);
    }
  }
  return Object.freeze(
    groups.map(({ name, norm, estimate = norm, parameters, size }) =>
      Object.freeze({ name, norm, estimate, parameters: Object.freeze([...parameters]), size }),
    ),
  );
}

/**
 * The same partition with other thresholds and the estimates that they come from, in the order of the groups.
 * Throws GhostgradError as {@link groupsOf}.
 */
export function withNorms(groups: Groups, norms: readonly number[], estimates = norms): Groups {
  if (norms.length !== groups.length || estimates.length !== groups.length) {
    throw new GhostgradError({
      what: 'thresholds and clipping groups differ in number',
      found: String(norms.length),
      expected: String(groups.length),
    });
  }
  return groupsOf(groups.map((group, k) => ({ ...group, norm: norms[k] ?? NaN, estimate: estimates[k] ?? NaN })));
}

/** Whether two partitions are one: names, parameters and sizes alike and in the same order, whatever the thresholds. */
export const samePartition = (a: Groups, b: Groups): boolean =>
  a.length === b.length &&
  a.every(({ name, parameters, size }, k) => {
    const other = b[k];
    return (
      other?.name === name &&
      other.size === size &&
      other.parameters.length === parameters.length &&
      parameters.every((parameter, i) => parameter === other.parameters[i])
    );
  });

/**
 * The most, in L2 norm over all parameters, that one privacy unit contributes to the sum of clipped gradients:
 * √Σ C_k².
 */
export const sensitivity = (groups: Groups): number => Math.hypot(...groups.map(({ norm }) => norm));

/** The parameters of all groups. */
export const parametersOf = (groups: Groups): readonly string[] => groups.flatMap(({ parameters }) => parameters);
