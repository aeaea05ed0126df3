import { type GraphBuilder, concat, reshape, scale } from '../ops/builder.ts';
import type { ParameterUse } from '../ops/operator.ts';
import type { Shape } from '../tensor/tensor.ts';
import { broadcast } from './broadcast.ts';
import type { Context, Contraction, Use } from './contraction.ts';
import { convolution } from './convolution.ts';
import { gather } from './gather.ts';
import { outer } from './outer.ts';
import { tableAndProduct, tied } from './tied.ts';

/**
 * The contraction behind the uses of one parameter in a batch of `units` privacy units. Several uses add up to one
 * gradient, whose norm is not that of its parts: uses of one kind become one use over the positions of all, a table
 * that is also multiplied by has cross terms, and whatever else is mixed is formed for each unit.
 */
export function contractionOf(
  b: GraphBuilder, uses: readonly ParameterUse[], parameterShape: Shape, units: number, guarded: boolean,
): Contraction {
  const context = { b, parameterShape, units, guarded };
  const joined = joinAlike(b, units, uses);
  const [one, two] = joined;
  if (one !== undefined && joined.length === 1) return contractionOfUse(context, one);
  if (one?.kind === 'outer' && two?.kind === 'gather' && joined.length === 2) return tableAndProduct(context, two, one);
  if (one?.kind === 'gather' && two?.kind === 'outer' && joined.length === 2) return tableAndProduct(context, one, two);
  return tied(context, joined.map((use) => contractionOfUse(context, use)));
}

function contractionOfUse(context: Context, use: ParameterUse): Contraction {
  switch (use.kind) {
    case 'outer': return outer(context, use);
    case 'convolution': return convolution(context, use);
    case 'gather': return gather(context, use);
    case 'broadcast': return broadcast(context, use);
    case 'opaque': return broadcast(context, { kind: 'broadcast', gradient: use.perExample });
  }
}

/** What uses must have in common to be one use over more positions. */
function likeness(b: GraphBuilder, use: ParameterUse): string {
  switch (use.kind) {
    case 'outer': return `outer ${use.transposed}`;
    case 'gather': return 'gather';
    case 'convolution': return JSON.stringify([use.geometry, b.shape(use.input).slice(1), b.shape(use.outputGradient).slice(1)]);
    // Sums that round have a bound of their own.
    case 'broadcast': return `broadcast ${use.trailing ?? 0} ${b.shape(use.gradient).join()} ${use.summed?.of ?? ''}`;
    case 'opaque': return 'opaque';
  }
}

/** Uses of one kind as one: a recurrent weight used at T times is used once, at T positions. */
function joinAlike(b: GraphBuilder, units: number, uses: readonly ParameterUse[]): readonly ParameterUse[] {
  const groups = new Map<string, ParameterUse[]>();
  uses.forEach((use) => {
    const key = likeness(b, use);
    groups.set(key, [...(groups.get(key) ?? []), use]);
  });
  return [...groups.values()].map((alike) => (alike.length === 1 ? alike[0]! : joined(b, units, alike)));
}

function joined(b: GraphBuilder, units: number, uses: readonly ParameterUse[]): ParameterUse {
  const [first] = uses;
  const of = <K extends ParameterUse['kind']>(kind: K): Use<K>[] => uses.filter((use): use is Use<K> => use.kind === kind);
  switch (first!.kind) {
    case 'outer': {
      const alike = of('outer');
      return {
        kind: 'outer', transposed: alike[0]!.transposed, input: concat(b, alike.map(({ input }) => input), 1),
        outputGradient: concat(b, alike.map((use) => scale(b, use.outputGradient, use.scale ?? 1)), 1),
      };
    }
    case 'gather': return {
      kind: 'gather', indices: concat(b, of('gather').map(({ indices }) => indices), 1),
      outputGradient: concat(b, of('gather').map(({ outputGradient }) => outputGradient), 1),
    };
    case 'convolution': return joinedImages(b, units, of('convolution'));
    case 'broadcast': return { ...of('broadcast')[0]!, gradient: b.op('Sum', of('broadcast').map(({ gradient }) => gradient)) };
    case 'opaque': return { kind: 'opaque', perExample: b.op('Sum', of('opaque').map(({ perExample }) => perExample)) };
  }
}

/** The images that a kernel sees in each unit, all together. */
function joinedImages(b: GraphBuilder, units: number, uses: readonly Use<'convolution'>[]): Use<'convolution'> {
  const together = (pick: (use: Use<'convolution'>) => string) => {
    const all = concat(b, uses.map(pick).map((x) => reshape(b, x, [units, b.shape(x)[0]! / units, ...b.shape(x).slice(1)])), 1);
    const [, images, ...rest] = b.shape(all) as [number, number, ...number[]];
    return reshape(b, all, [units * images, ...rest]);
  };
  return {
    kind: 'convolution', geometry: uses[0]!.geometry,
    input: together(({ input }) => input), outputGradient: together(({ outputGradient }) => outputGradient),
  };
}
