import { backpropagate } from '../../src/autodiff/reverse.ts';
import type { TypedGraph } from '../../src/graph/ir.ts';
import { graphBuilder } from '../../src/ops/builder.ts';
import { expandComposites } from '../../src/ops/expand.ts';
import { semantics } from '../../src/ops/table.ts';
import { type Tensor, type TensorType, sizeOf } from '../../src/tensor/tensor.ts';
import { floatsOf, isChecked } from './numbers.ts';
import type { Feeds } from './program.ts';

/** A graph that computes gradients of Σ seed·output. */
export interface GradientProgram {
  /** Outputs are `gradient/` and the name of an input; those whose gradient is zero are absent. */
  readonly graph: TypedGraph;
  /** The seed of each float output: of the graph's input `seed/` and the output's name. */
  readonly seeds: Feeds;
  /** Every float input. */
  readonly wanted: readonly string[];
}

export const gradientName = (input: string): string => `gradient/${input}`;
export const seedName = (output: string): string => `seed/${output}`;

/** The gradient graph; undefined where no float input leads to a float output. Composite operators are expanded. */
export function gradientProgram(whole: TypedGraph, random: () => number): GradientProgram | undefined {
  const graph = expandComposites(whole);
  const wanted = graph.inputs.filter(({ dtype }) => isChecked(dtype)).map(({ name }) => name);
  const dependent = new Set(wanted);
  for (const { inputs, outputs } of graph.nodes) {
    if (inputs.some((v) => dependent.has(v))) outputs.forEach((v) => { if (v !== '') dependent.add(v); });
  }
  const outputs = graph.outputs.filter(({ name, dtype }) => isChecked(dtype) && dependent.has(name));
  if (outputs.length === 0) return undefined;
  const b = graphBuilder(semantics, graph);
  const seeds = new Map(outputs.map(({ name }) => [name, b.input(seedName(name), b.type(name))]));
  const found = backpropagate(b, graph.nodes, seeds, (v) => dependent.has(v) && isChecked(b.type(v).dtype));
  return {
    wanted, graph: b.build(wanted.flatMap((name) => {
      const gradient = found.get(name);
      return gradient === undefined ? [] : [[gradientName(name), gradient] as const];
    })),
    seeds: Object.fromEntries(outputs.map(({ name }) => [name, seedLike(random, b.type(name))])),
  };
}

const seedLike = (random: () => number, { dtype, shape }: TensorType): Tensor =>
  floatsOf(dtype, shape, Array.from({ length: sizeOf(shape) }, () => random() * 2 - 1));
