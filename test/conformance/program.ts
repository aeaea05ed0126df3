import { GhostgradError } from '../../src/errors.ts';
import { type Graph, type TypedGraph, showNode } from '../../src/graph/ir.ts';
import { specialise } from '../../src/graph/specialise.ts';
import { semantics } from '../../src/ops/table.ts';
import { type Tensor, isFloat } from '../../src/tensor/tensor.ts';

export type Feeds = Readonly<Record<string, Tensor>>;

/** A case's graph for the shapes of its data, with the values of what it still takes. */
export interface Program {
  readonly graph: TypedGraph;
  readonly feeds: Feeds;
}

/**
 * The graph with every weight an input, so that it is differentiated like one. Backend tests pass axes, shapes and
 * the like as inputs, where real models have constants: inputs of `bound` become constants.
 */
function program(graph: Graph, inputs: Feeds, bound: ReadonlySet<string>): Program {
  const weights = [...graph.initializers]
    .filter(([name, t]) => isFloat(t.dtype) && graph.literals?.has(name) !== true);
  const given = { ...inputs, ...Object.fromEntries(weights) };
  const constants = Object.entries(given).filter(([name]) => bound.has(name));
  const open: Graph = {
    ...graph,
    inputs: [...graph.inputs, ...weights.map(([name, { dtype, shape }]) => ({ name, dtype, shape }))]
      .filter(({ name }) => !bound.has(name)),
    initializers: new Map([
      ...[...graph.initializers].filter(([name]) => !Object.hasOwn(given, name)), ...constants,
    ]),
    literals: new Set([...(graph.literals ?? []), ...constants.map(([name]) => name)]),
  };
  const feeds = Object.fromEntries(Object.entries(given).filter(([name]) => !bound.has(name)));
  const shapes = Object.fromEntries(Object.entries(feeds).map(([name, { shape }]) => [name, shape]));
  return { graph: specialise(open, shapes, semantics), feeds };
}

/**
 * Calls `use` with the program; where a rule asks for a value that it must know at compile time, once more with that
 * value bound.
 */
export function withBound<T>(graph: Graph, inputs: Feeds, use: (program: Program) => T): T {
  const bound = new Set<string>();
  for (;;) {
    try {
      return use(program(graph, inputs, bound));
    } catch (error) {
      const more = [...sourcesOf(graph, unknownAt(graph, error))].filter((name) => !bound.has(name));
      if (more.length === 0) throw error;
      more.forEach((name) => bound.add(name));
    }
  }
}

/** The value that an error asks to be constant. */
function unknownAt(graph: Graph, error: unknown): string | undefined {
  if (!(error instanceof GhostgradError)) return undefined;
  const index = /^input (\d+) of/.exec(error.parts.found ?? '')?.[1];
  const node = graph.nodes.find((n) => showNode(n) === error.parts.where);
  return index === undefined ? undefined : node?.inputs[Number(index)];
}

/** The inputs and weights that a value is computed from. */
function sourcesOf(graph: Graph, value: string | undefined): ReadonlySet<string> {
  const wanted = new Set(value === undefined ? [] : [value]);
  for (const node of [...graph.nodes].reverse()) {
    if (node.outputs.some((o) => wanted.has(o))) node.inputs.forEach((v) => wanted.add(v));
  }
  const sources = new Set([...graph.inputs.map(({ name }) => name), ...graph.initializers.keys()]);
  return new Set([...wanted].filter((name) => sources.has(name) && graph.literals?.has(name) !== true));
}
