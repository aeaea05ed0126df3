import type { Graph, Node } from '../graph/ir.ts';
import { entryOf, hasOperator } from '../ops/table.ts';

/**
 * The scales and shifts of a model's normalisations: what its operators say of theirs, and, where an exporter wrote a
 * normalisation out in arithmetic, what its quotient is multiplied by and what is added to that product.
 *
 * A quotient is a normalisation where the divisor is the root of a mean: x / √(mean(…) + ε), or x · 1/√(…), however the mean's
 * argument was computed (LayerNorm, RMSNorm, GroupNorm, InstanceNorm). A BatchNorm that was written out has constants there,
 * and is not told from other arithmetic.
 *
 * @param isParameter whether a name is one that can be trained
 */
export function normParameters({ nodes }: Graph, isParameter: (name: string) => boolean): readonly string[] {
  const makers = new Map(nodes.flatMap((node) => node.outputs.map((output) => [output, node] as const)));
  /** The node whose numbers a value has, maybe in another shape. */
  const sourceOf = (value: string): Node | undefined => {
    const maker = makers.get(value);
    return maker !== undefined && movers.has(maker.op) ? sourceOf(maker.inputs[0] ?? '') : maker;
  };
  const isNormalised = (value: string): boolean => {
    const source = sourceOf(value);
    if (source === undefined) return false;
    if (normalisesIn(source) !== undefined) return true;
    if (!quotients.has(source.op)) return false;
    return source.inputs.some((operand, i) => (i === 1 || source.op === 'Mul') && isRootOfMean(operand));
  };
  const isRootOfMean = (value: string, seenRoot = false): boolean => {
    const source = sourceOf(value);
    if (source === undefined) return false;
    if (means.has(source.op)) return seenRoot || norms.has(source.op);
    if (!onTheWay.has(source.op)) return false;
    return source.inputs.some((operand) => isRootOfMean(operand, seenRoot || roots.has(source.op)));
  };
  const found = new Set<string>();
  const scaled = new Set<string>();
  const meets = (node: Node, test: (value: string) => boolean): boolean =>
    node.inputs.filter((name) => !isParameter(sourceName(name))).some(test);
  const sourceName = (name: string): string => {
    const maker = makers.get(name);
    return maker !== undefined && movers.has(maker.op) ? sourceName(maker.inputs[0] ?? '') : name;
  };
  for (const node of nodes) {
    for (const place of normalisesIn(node) ?? []) found.add(node.inputs[place] ?? '');
    if (!affine.has(node.op)) continue;
    const isBehind = (value: string): boolean => isNormalised(value) || scaled.has(sourceOf(value)?.outputs[0] ?? '');
    if (!meets(node, node.op === 'Mul' ? isNormalised : isBehind)) continue;
    const own = node.inputs.map(sourceName).filter(isParameter);
    for (const name of own) found.add(name);
    if (node.op === 'Mul' && own.length > 0) scaled.add(node.outputs[0] ?? '');
  }
  return [...found].filter(isParameter);
}

const normalisesIn = (node: Node): readonly number[] | undefined => (hasOperator(node) ? entryOf(node).normalises : undefined);

/** How exporters write normalisations out; all of the standard domain, none of another of the same name does something else. */
const affine = new Set(['Mul', 'Add']);
const quotients = new Set(['Div', 'Mul']);
const roots = new Set(['Sqrt', 'Pow']);
const norms = new Set(['ReduceL2']);
const means = new Set(['ReduceMean', 'ReduceSum', 'ReduceSumSquare', 'GlobalAveragePool', ...norms]);
/** Between the mean and the quotient: the root, ε and bounds, the inverse, and factors of n/(n − 1). */
const onTheWay = new Set([...roots, 'Add', 'Mul', 'Div', 'Reciprocal', 'Max', 'Clip']);
const movers = new Set(['Reshape', 'Transpose', 'Cast', 'Identity', 'Squeeze', 'Unsqueeze', 'Flatten', 'Expand']);
