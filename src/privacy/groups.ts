import { GhostgradError } from '../errors.ts';

/** Parameters whose joint per-example gradient is clipped to one L2 norm. */
export interface Group {
  readonly name: string;
  /** The threshold C_k: L2 norm that one privacy unit's gradient of this group is clipped to. */
  readonly norm: number;
  readonly parameters: readonly string[];
}

/** A partition of the trainable parameters. One group is flat clipping. */
export type Groups = readonly Group[];

/** Flat clipping: all parameters in one group of threshold `norm`. */
export const flatGroup = (parameters: readonly string[], norm: number): Groups =>
  groupsOf([{ name: 'all', norm, parameters }]);

/**
 * Checked and frozen groups. Throws GhostgradError for a threshold that is not positive and finite, a repeated
 * name, an empty group or a parameter in two groups.
 */
export function groupsOf(groups: readonly Group[]): Groups {
  if (groups.length === 0)
    throw new GhostgradError({ what: 'no clipping group', expected: 'at least one group of parameters' });
  const names = new Set<string>();
  const owner = new Map<string, string>();
  for (const { name, norm, parameters } of groups) {
    const where = `clipping group "${name}"`;
    if (names.has(name)) throw new GhostgradError({ what: 'two clipping groups of one name', where });
    names.add(name);
    if (!(norm > 0 && Number.isFinite(norm))) {
      throw new GhostgradError({
        what: 'clipping norm out of range',
        where,
        found: String(norm),
        expected: 'a finite number above 0',
        fix: 'without a finite clipping norm there is no bound that noise could be scaled to',
      });
    }
    if (parameters.length === 0) throw new GhostgradError({ what: 'a clipping group without parameters', where });
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
    groups.map(({ name, norm, parameters }) =>
      Object.freeze({ name, norm, parameters: Object.freeze([...parameters]) }),
    ),
  );
}

/**
 * The most, in L2 norm over all parameters, that one privacy unit contributes to the sum of clipped gradients:
 * √Σ C_k².
 */
export const sensitivity = (groups: Groups): number => Math.hypot(...groups.map(({ norm }) => norm));

/** The parameters of all groups. */
export const parametersOf = (groups: Groups): readonly string[] => groups.flatMap(({ parameters }) => parameters);
