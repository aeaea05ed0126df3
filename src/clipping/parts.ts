import { type Derivation, derivations, throughDerivation } from '../autodiff/derivation.ts';
import type { GradientPath, UseSite } from '../autodiff/reverse.ts';
import type { TypedGraph } from '../graph/ir.ts';
import { type GraphBuilder, type Value, concat, reshape, scale, slice } from '../ops/builder.ts';
import type { ParameterUse } from '../ops/operator.ts';
import { type View, disjoint, sameView, wholeView } from '../ops/view.ts';
import type { Contraction } from './contraction.ts';
import { tied } from './tied.ts';
import { contractionOf } from './uses.ts';
import { instantiatedNorm, sum, weightedSum } from './unit.ts';

/** A part of a parameter's gradient that is orthogonal to its other parts, so that squared norms add up. */
export interface Part {
  readonly sites: readonly UseSite[];
  readonly does: Contraction;
  /** The parameter's gradient that this part's is in: its elements in their places, zeros elsewhere. */
  readonly place: (gradient: Value) => Value;
}

export interface PartsContext {
  readonly b: GraphBuilder;
  readonly graph: TypedGraph;
  readonly path: GradientPath;
  /** The uses of parameters and of values derived from them. */
  readonly uses: ReadonlyMap<Value, readonly UseSite[]>;
  readonly units: number;
  readonly guarded: boolean;
}

/** The uses of what looks at a parameter in one way. */
interface Look {
  readonly value: Value;
  readonly view: View;
  readonly sites: readonly UseSite[];
}

/**
 * The parts of every parameter's gradient. Used as it is, or through one view of it, a parameter has one part; through
 * views that share no element (the slices of a fused weight) one for each. Where views overlap, or something is computed
 * from the parameter before it meets the data, its gradient is formed for each unit.
 */
export function partsOf(context: PartsContext): ReadonlyMap<Value, readonly Part[]> {
  const origins = derivations(context.graph, context.path);
  return new Map([...context.path.parameters].map((parameter) => [parameter, partsOfParameter(context, origins, parameter)]));
}

function partsOfParameter(
  context: PartsContext, origins: ReadonlyMap<Value, Derivation>, parameter: Value,
): readonly Part[] {
  const { b, uses, units, guarded } = context;
  const mine = [...uses].filter(([value]) => origins.get(value)?.roots.has(parameter) === true);
  const looks = joinLooks(mine.flatMap(([value, sites]) => {
    const view = origins.get(value)?.view;
    return view === undefined ? [] : [{ value, view, sites }];
  }));
  const computed = mine.filter(([value]) => origins.get(value)?.view === undefined);
  const contraction = (value: Value, sites: readonly UseSite[]) =>
    contractionOf(b, sites.map(({ use }) => use), b.shape(value), units, guarded);
  const seen = looks.map(({ value, sites }): Part => ({
    sites, does: contraction(value, sites), place: (gradient) => placed(context, parameter, new Map([[value, gradient]])),
  }));
  const apart = looks.every((a, i) => looks.every((other, k) => k <= i || disjoint(a.view, other.view)));
  if (computed.length === 0 && apart) return seen;

  const within = { b, units, guarded, parameterShape: b.shape(parameter) };
  const whole = seen.map(({ does, place }): Contraction => ({
    ...does,
    perExample: () => unitwise(b, units, [does.perExample()], ([g]) => place(g!)),
    ...(does.product && { product: (weights) => place(does.product!(weights)) }),
  }));
  const made = computed.map(([value, sites]) => [value, contraction(value, sites)] as const);
  const throughAll = (parts: readonly Value[]) =>
    placed(context, parameter, new Map(made.map(([value], i) => [value, parts[i]!])));
  const perExample = () => unitwise(b, units, made.map(([, does]) => does.perExample()), throughAll);
  const size = b.shape(parameter).reduce((n, m) => n * m, 1);
  const computation: Contraction = {
    size: { T: 1, d: 1, p: size, groups: 1, gramDepth: 1, gramTerms: 1, unfolded: false },
    perExample,
    // What is measured is what is summed: the roundings on the way are in both. But an operand that is not ordinary was
    // removed before, and must show: its unit's error is infinite, and makes this NaN.
    instantiated: () => {
      const errors = made.flatMap(([, does]) => does.instantiated().error ?? []);
      return instantiatedNorm(within, perExample(), errors.length === 0 ? undefined : scale(b, sum(b, errors), 0));
    },
    weightedSum: (weights) => weightedSum(within, perExample(), false, weights),
    ...(!guarded && {
      product: () => throughAll(made.map(([, does]) => does.product?.(undefined) ?? does.weightedSum(undefined))),
    }),
  };
  const all = made.length === 0 ? whole : [...whole, computation];
  return [{
    sites: mine.flatMap(([, sites]) => sites), does: all.length === 1 ? all[0]! : tied(within, all),
    place: (gradient) => gradient,
  }];
}

const placed = ({ b, graph, path }: PartsContext, parameter: Value, gradients: ReadonlyMap<Value, Value>): Value =>
  throughDerivation(b, graph, path, gradients).get(parameter)!;

/** f of each unit's part of some [U, …] values, stacked again. */
function unitwise(b: GraphBuilder, units: number, values: readonly Value[], f: (parts: readonly Value[]) => Value): Value {
  const results = Array.from({ length: units }, (_, u) => {
    const found = f(values.map((x) => reshape(b, slice(b, x, [0], [u], [u + 1]), b.shape(x).slice(1))));
    return reshape(b, found, [1, ...b.shape(found)]);
  });
  return concat(b, results, 0);
}

/** Puts together the looks that see the same, and those that see a matrix and its transpose. */
function joinLooks(looks: readonly Look[]): readonly Look[] {
  // The parameter itself, or the view nearest to it, is what others are told in terms of.
  const plainFirst = [...looks].sort((a, b) => Number(!isWhole(a.view)) - Number(!isWhole(b.view)));
  return plainFirst.reduce<Look[]>((joined, look) => {
    for (const [i, other] of joined.entries()) {
      const sites = sameView(look.view, other.view) ? look.sites : asTransposed(look, other.view);
      if (sites !== undefined) return joined.with(i, { ...other, sites: [...other.sites, ...sites] });
    }
    return [...joined, look];
  }, []);
}

const isWhole = (view: View): boolean => sameView(view, wholeView(view.shape));

/** Uses through a look as uses of its transpose, where that is what `view` sees and they are matrix products. */
function asTransposed({ view, sites }: Look, transpose: View): readonly UseSite[] | undefined {
  const [rows, columns] = [view.shape[0], view.shape[1]];
  if (view.shape.length !== 2 || transpose.shape.length !== 2) return undefined;
  const swapped: View = { shape: [columns!, rows!], strides: [view.strides[1]!, view.strides[0]!], offset: view.offset };
  if (!sameView(swapped, transpose)) return undefined;
  const turned = sites.map(({ use }) => turn(use));
  return turned.every((use) => use !== undefined) ? sites.map((site, i) => ({ ...site, use: turned[i]! })) : undefined;
}

const turn = (use: ParameterUse): ParameterUse | undefined =>
  (use.kind === 'outer' ? { ...use, transposed: !use.transposed } : undefined);
