import { type Node, stringAttribute } from '../graph/ir.ts';
import { sizeOf } from '../tensor/tensor.ts';
import { type GraphBuilder, type Value, matmul, mul, reduceSum, reshape, slice, transpose } from './builder.ts';
import type { Composite } from './composite.ts';
import { badOperands } from './operands.ts';

/** A value whose axes have names, each a different one. */
interface Named {
  readonly value: Value;
  readonly labels: readonly string[];
}

interface Equation {
  /** The axes of each operand, in which a name may stand twice (a diagonal). */
  readonly operands: readonly (readonly string[])[];
  readonly output: readonly string[];
}

const ellipsis = '...';

/** `a...b` as [a, ..., b]; undefined where it holds anything but letters and one ellipsis. */
function termOf(text: string): string[] | undefined {
  const parts = text.match(/\.\.\.|[A-Za-z]/g) ?? [];
  return parts.join('') === text && parts.filter((p) => p === ellipsis).length <= 1 ? [...parts] : undefined;
}

/** The axes behind an ellipsis count from the right: `.0` is the last of them. */
const hidden = (count: number): string[] => Array.from({ length: count }, (_, i) => `.${count - 1 - i}`);

function parse(node: Node, ranks: readonly number[]): Equation {
  const equation = stringAttribute(node, 'equation', '').replaceAll(' ', '');
  const refuse = (expected: string) => badOperands({ node }, `equation "${equation}" for operands of ${ranks.join(', ')} axes`, expected);
  const [left = '', right, ...rest] = equation.split('->');
  const terms = left.split(',').map(termOf);
  const asked = right === undefined ? undefined : termOf(right);
  if (terms.length !== ranks.length || rest.length > 0 || (right !== undefined && asked === undefined)) {
    throw refuse(`${ranks.length} terms of letters, and at most one "->"`);
  }
  const counts = terms.flatMap((term, i) => (term?.includes(ellipsis) === true ? [ranks[i]! - term.length + 1] : []));
  const behind = hidden(Math.max(0, counts[0] ?? 0));
  const operands = terms.map((term, i): string[] => {
    const labels = term?.flatMap((label) => (label === ellipsis ? behind : [label]));
    if (labels === undefined || labels.length !== ranks[i]) {
      throw refuse('one letter for each axis of an operand, and as many axes behind every ellipsis');
    }
    return labels;
  });
  const all = operands.flat();
  const once = [...new Set(all)].filter((label) => !label.startsWith('.') && all.indexOf(label) === all.lastIndexOf(label)).sort();
  const output = asked?.flatMap((label) => (label === ellipsis ? behind : [label])) ?? [...behind, ...once];
  if (new Set(output).size < output.length || !output.every((label) => all.includes(label))) {
    throw refuse('an output of axes of the operands, each once');
  }
  return { operands, output };
}

/** Takes the diagonal where a name stands twice: along two axes made one, each entry lies one step more than the size apart. */
function diagonal(b: GraphBuilder, node: Node, value: Value, labels: readonly string[]): Named {
  const twice = labels.find((label, i) => labels.indexOf(label) < i);
  if (twice === undefined) return { value, labels };
  const [first, second] = [labels.indexOf(twice), labels.lastIndexOf(twice)];
  const shape = b.shape(value);
  const n = shape[first]!;
  if (shape[second] !== n) throw badOperands({ node }, `axes of ${n} and ${shape[second]} with the name ${twice}`, 'axes of one size');
  const others = labels.flatMap((_, i) => (i === first || i === second ? [] : [i]));
  const kept = others.map((i) => shape[i]!);
  const flat = reshape(b, transpose(b, value, [...others, first, second]), [...kept, n * n]);
  const picked = slice(b, flat, [kept.length], [0], [n * n], [n + 1]);
  return diagonal(b, node, picked, [...others.map((i) => labels[i]!), twice]);
}

const without = (labels: readonly string[], gone: readonly string[]): string[] => labels.filter((label) => !gone.includes(label));
const shared = (labels: readonly string[], others: readonly string[]): string[] => labels.filter((label) => others.includes(label));

/** Sums over the axes that nothing else needs. */
function summed(b: GraphBuilder, { value, labels }: Named, needed: readonly string[]): Named {
  const gone = without(labels, needed);
  return { value: reduceSum(b, value, gone.map((label) => labels.indexOf(label))), labels: without(labels, gone) };
}

const ordered = (b: GraphBuilder, { value, labels }: Named, order: readonly string[]): Value =>
  transpose(b, value, order.map((label) => labels.indexOf(label)));

const sizesOf = (b: GraphBuilder, { value, labels }: Named, of: readonly string[]): number[] =>
  of.map((label) => b.shape(value)[labels.indexOf(label)]!);

/**
 * The product of two operands, summed over the names that both have and nothing else needs. Free axes of each side are
 * merged, so that a weight without an axis in common with the result meets the data as a matrix.
 */
function contract(b: GraphBuilder, node: Node, x: Named, y: Named, needed: readonly string[]): Named {
  const common = shared(x.labels, y.labels);
  const together = shared(common, needed);
  const inner = without(common, together);
  // A single entry that meets many is multiplied with their sum.
  const fitted = (own: Named, other: Named): Named => {
    const many = inner.filter((_, i) => sizesOf(b, other, inner)[i] === 1 && sizesOf(b, own, inner)[i] !== 1);
    return { ...own, value: reduceSum(b, own.value, many.map((label) => own.labels.indexOf(label)), true) };
  };
  const [left, right] = [fitted(x, y), fitted(y, x)];
  const [free, others] = [without(left.labels, common), without(right.labels, common)];
  const [one, two] = [sizesOf(b, left, together), sizesOf(b, right, together)];
  const [m, n] = [sizesOf(b, left, free), sizesOf(b, right, others)];
  const joint = one.map((size, i) => (size === 1 ? two[i]! : size));
  const fits = one.every((size, i) => size === two[i] || size === 1 || two[i] === 1)
    && sizesOf(b, left, inner).join() === sizesOf(b, right, inner).join();
  if (!fits) {
    throw badOperands({ node }, `axes ${common.join(', ')} of ${sizesOf(b, x, common).join(', ')} and ${sizesOf(b, y, common).join(', ')}`,
      'axes of one name that are of one size');
  }
  const labels = [...together, ...free, ...others];
  if (inner.length === 0) {
    const spread = reshape(b, ordered(b, left, [...together, ...free]), [...one, ...m, ...others.map(() => 1)]);
    const met = reshape(b, ordered(b, right, [...together, ...others]), [...two, ...free.map(() => 1), ...n]);
    return { value: mul(b, spread, met), labels };
  }
  const k = sizeOf(sizesOf(b, left, inner));
  const product = matmul(b,
    reshape(b, ordered(b, left, [...together, ...free, ...inner]), [...one, sizeOf(m), k]),
    reshape(b, ordered(b, right, [...together, ...inner, ...others]), [...two, k, sizeOf(n)]));
  return { value: reshape(b, product, [...joint, ...m, ...n]), labels };
}

/** Sums of products over named axes, two operands at a time from the left. */
const einsum: Composite = {
  expand: ({ b, node, inputs }) => {
    const values = inputs.map((v) => {
      if (v === undefined) throw badOperands({ node }, 'an omitted operand', 'a value for each term');
      return v;
    });
    const { operands, output } = parse(node, values.map((v) => b.shape(v).length));
    const neededAfter = (i: number): string[] => [...output, ...operands.slice(i + 1).flat()];
    const terms = operands.map((labels, i) => {
      const elsewhere = [...output, ...operands.filter((_, k) => k !== i).flat()];
      return summed(b, diagonal(b, node, values[i]!, labels), elsewhere);
    });
    const total = terms.slice(1).reduce((product, term, i) =>
      summed(b, contract(b, node, product, term, neededAfter(i + 1)), neededAfter(i + 1)), terms[0]!);
    return [ordered(b, total, output)];
  },
};

/** Products over named axes. */
export const contraction = { Einsum: einsum } satisfies Record<string, Composite>;
