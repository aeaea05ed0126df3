import type { Graph, Node } from '../graph/ir.ts';
import { dtypeOf } from '../graph/onnx.ts';
import type { Operator } from '../ops/operator.ts';
import { entryOf, hasOperator } from '../ops/table.ts';
import { type Tensor, isFloat, toNumbers } from '../tensor/tensor.ts';

/**
 * Tells weights from constants in models whose exporter writes both as Constant nodes. A float32 Constant of at least
 * two elements becomes a parameter, under its own name, where
 *
 * - it stands in a place that by the operator's meaning holds a learned weight (a kernel, a matrix, a table, a scale,
 *   a bias: `learned` of its entry) and meets the data there (in a file that keeps other learned weights as
 *   initializers, not where all its numbers are the same: such a scale or shift of a normalisation does nothing), or
 * - it is a bias or scale in a node of its own: it has more than one element along one axis only, meets there what a
 *   weight has been applied to before, and is no mask: all its numbers are below 10⁴ in size, and it does not consist
 *   of zeros and ones alone with both present. This second rule is for files that keep no learned weight as an
 *   initializer; where one does, its Constants of this form are what the program wrote.
 *
 * So factors, epsilons, attention masks, position codes and the normalisation of an image before its first layer stay
 * constant. What the rules leave out can be named for training ({@link asParameters}).
 */
export function withLearnedConstants(graph: Graph): Graph {
  const literals = new Set(graph.literals);
  const constantOf = (name: string): Tensor | undefined => (literals.has(name) ? severalFloats(graph, name) : undefined);
  if (![...literals].some((name) => constantOf(name) !== undefined)) return graph;
  const found = new Set<string>();
  const isWeight = (name: string): boolean =>
    found.has(name) || (!literals.has(name) && severalFloats(graph, name) !== undefined);
  const keepsInitializers = graph.nodes.some((node) => placesOf(node).learned.some(isWeight));
  const flow = startOf(graph);
  for (const node of graph.nodes) {
    const { learned, learnedByChannel, foldsTypes } = placesOf(node);
    const fed = node.inputs.filter((v) => flow.data.has(v));
    if (foldsTypes || fed.length === 0) continue;
    const meetsQuantities = fed.some((v) => flow.quantities.has(v));
    const isWeighted = fed.some((v) => flow.weighted.has(v));
    if (meetsQuantities || fed.every((v) => flow.codes.has(v))) {
      for (const name of learned) {
        const t = constantOf(name);
        if (t !== undefined && !(keepsInitializers && isUniform(t))) found.add(name);
      }
    }
    if (isWeighted && !keepsInitializers) {
      for (const name of learnedByChannel) {
        const t = constantOf(name);
        if (t !== undefined && isByChannel(t) && !isMask(t)) found.add(name);
      }
    }
    const takesWeight = learned.some(isWeight);
    const staysCode = fed.every((v) => flow.codes.has(v)) && !makesFloats(graph, node);
    for (const output of node.outputs) {
      flow.data.add(output);
      if (staysCode) flow.codes.add(output);
      if (meetsQuantities || takesWeight) flow.quantities.add(output);
      if (isWeighted || takesWeight) flow.weighted.add(output);
    }
  }
  return found.size === 0 ? graph : { ...graph, literals: new Set([...literals].filter((name) => !found.has(name))) };
}

/** The model in which constants of these names, given outright and not as patterns, are parameters. */
export function asParameters(graph: Graph, names: readonly string[]): Graph {
  const asked = names.filter((name) => graph.literals?.has(name) === true && isFloat(graph.initializers.get(name)?.dtype ?? 'bool'));
  return asked.length === 0 ? graph : { ...graph, literals: new Set([...graph.literals ?? []].filter((name) => !asked.includes(name))) };
}

/** What is known of the values of a graph, as sets of their names. */
interface Flow {
  /** Depends on the inputs. */
  readonly data: Set<string>;
  /** Of these, integers that came as such: tokens, categories, masks. */
  readonly codes: Set<string>;
  /** Of these, what came as numbers, or what a weight has been applied to. */
  readonly quantities: Set<string>;
  /** Of these, what lies behind a weight. */
  readonly weighted: Set<string>;
}

function startOf({ inputs }: Graph): Flow {
  const named = (floats: boolean): string[] => inputs.filter(({ dtype }) => isFloat(dtype) === floats).map(({ name }) => name);
  return {
    data: new Set(inputs.map(({ name }) => name)), codes: new Set(named(false)), quantities: new Set(named(true)), weighted: new Set(),
  };
}

/** Names of the operands in the places where an operator's weights stand. */
function placesOf(node: Node) {
  const entry: Partial<Pick<Operator, 'learned' | 'learnedByChannel' | 'foldsTypes'>> = hasOperator(node) ? entryOf(node) : {};
  const named = (places: readonly number[] = []): string[] => places.map((i) => node.inputs[i] ?? '').filter((name) => name !== '');
  return {
    learned: named(entry.learned), learnedByChannel: named(entry.learnedByChannel), foldsTypes: entry.foldsTypes === true,
  };
}

function severalFloats({ initializers }: Graph, name: string): Tensor | undefined {
  const t = initializers.get(name);
  return t?.dtype === 'float32' && t.data.length > 1 ? t : undefined;
}

/** Whether what a node makes of integers may be floats: it is asked for them, or has floats among its operands. */
function makesFloats({ initializers }: Graph, { inputs, attributes }: Node): boolean {
  const asked = attributes['to']?.type === 'int' ? dtypeOf(attributes['to'].value) : undefined;
  return (asked !== undefined && isFloat(asked)) || inputs.some((name) => isFloat(initializers.get(name)?.dtype ?? 'bool'));
}

const isByChannel = ({ shape }: Tensor): boolean => shape.filter((n) => n !== 1).length === 1;

const isUniform = ({ data }: Tensor): boolean => data.every((x: number | bigint) => x === data[0]);

/** Numbers that take positions away, by adding something huge or by multiplying with 0 or 1. */
function isMask(t: Tensor): boolean {
  const values = new Set(toNumbers(t));
  return [...values].some((x) => !(Math.abs(x) < 1e4)) || (values.size === 2 && values.has(0) && values.has(1));
}
