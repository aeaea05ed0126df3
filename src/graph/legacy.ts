import { TensorProto_DataType as DataType } from 'onnx-buf';
import { GhostgradError } from '../errors.ts';
import { int64, sizeOf } from '../tensor/tensor.ts';
import { type Attributes, type Node, float, floatAttribute, int, intAttribute, ints, intsAttribute, showNode } from './ir.ts';
import type { UpgradeContext } from './upgrades.ts';

/** The version of the standard operator set that this file brings older graphs to. */
export const legacyBelow = 7;

/** How the form that an operator had before opset 7 is written in opset 7. */
type Rewrite = (node: Node, context: UpgradeContext) => Node;

/** Settings that say how to train or to save memory, and no longer exist. */
const obsolete = ['consumed_inputs', 'is_test', 'broadcast', 'output_sequence'];

/**
 * A node of a graph older than opset 7, in the form of opset 7.
 *
 * @throws GhostgradError where that form depends on something unknown, or does not exist
 */
export function modernised(node: Node, context: UpgradeContext): Node {
  const rewrite = node.domain === '' && Object.hasOwn(rewrites, node.op) ? rewrites[node.op] : undefined;
  const current = rewrite?.(node, context) ?? node;
  return { ...current, attributes: without(current.attributes, ...obsolete) };
}

const without = (attributes: Attributes, ...names: readonly string[]): Attributes =>
  Object.fromEntries(Object.entries(attributes).filter(([name]) => !names.includes(name)));

const rankOf = (node: Node, index: number, { rankOf: known }: UpgradeContext): number => {
  const rank = known(node.inputs[index] ?? '');
  if (rank !== undefined) return rank;
  throw new GhostgradError({
    what: `the old form of ${node.op} depends on the rank of input ${index}`, where: showNode(node),
    found: 'an unknown rank', expected: 'a rank that the file declares',
    fix: 'export the model again, with opset 17 for instance',
  });
};

/** Input `index` with axes of size 1 behind its own, so that it lines up with axis `axis` of a value of rank `rank`. */
function alignedAt(node: Node, index: number, axis: number, rank: number, context: UpgradeContext): Node {
  const own = rankOf(node, index, context);
  const behind = rank - axis - own;
  if (behind <= 0) return node;
  const axes = context.constant('axes', int64(Array.from({ length: behind }, (_, i) => own + i)));
  const aligned = context.op('Unsqueeze', [node.inputs[index]!, axes]);
  return { ...node, inputs: node.inputs.map((v, i) => (i === index ? aligned : v)) };
}

/** The second operand was lined up with the first at `axis`, by default at the end. */
const broadcast: Rewrite = (node, context) => {
  const current = { ...node, attributes: without(node.attributes, 'axis') };
  const axis = node.attributes['axis'];
  if (axis?.type !== 'int' || intAttribute(node, 'broadcast', 0) === 0) return current;
  const rank = rankOf(node, 0, context);
  return alignedAt(current, 1, axis.value < 0 ? axis.value + rank : axis.value, rank, context);
};

/** A slope was one for everything or one for each channel, the second axis. */
const prelu: Rewrite = (node, context) => {
  const slope = context.tensorOf(node.inputs[1] ?? '');
  if (slope !== undefined && sizeOf(slope.shape) === 1) return node;
  return rankOf(node, 1, context) === 1 ? alignedAt(node, 1, 1, rankOf(node, 0, context), context) : node;
};

/** The shape was an attribute (5). */
const reshape: Rewrite = (node, context) => {
  const shape = intsAttribute(node, 'shape', undefined);
  if (shape === undefined) return node;
  return {
    ...node, inputs: [node.inputs[0] ?? '', context.constant('shape', int64(shape))],
    attributes: without(node.attributes, 'shape'),
  };
};

/** The type was given by name (6). */
const cast: Rewrite = (node) => {
  const to = node.attributes['to'];
  if (to?.type !== 'string') return node;
  const dataType = Object.entries(DataType).find(([name]) => name === to.value.toUpperCase())?.[1];
  if (typeof dataType === 'number') return { ...node, attributes: { ...node.attributes, to: int(dataType) } };
  throw new GhostgradError({
    what: 'unknown element type', where: showNode(node), found: `"${to.value}"`, expected: 'a name such as FLOAT',
  });
};

/** One axis was repeated (6). */
const tile: Rewrite = (node, context) => {
  const [x = '', tiles = '', axis = ''] = node.inputs;
  if (axis === '') return node;
  const [count, at] = [context.tensorOf(tiles)?.data[0], context.tensorOf(axis)?.data[0]];
  if (count === undefined || at === undefined) {
    throw new GhostgradError({
      what: 'the old form of Tile has no newer form', where: showNode(node), found: 'a number of tiles or an axis that is computed',
      expected: 'constants', fix: 'export the model again, with opset 17 for instance',
    });
  }
  const rank = rankOf(node, 0, context);
  const repeats = Array.from({ length: rank }, (_, i) => (i === Number(at) ? Number(count) : 1));
  return { ...node, inputs: [x, context.constant('repeats', int64(repeats))] };
};

/** A default that was left out, or had fewer digits. */
const given = (name: string, value: Attributes[string]): Rewrite => (node) =>
  ({ ...node, attributes: { [name]: value, ...node.attributes } });

const rewrites: Readonly<Record<string, Rewrite>> = {
  ...Object.fromEntries(['Add', 'Sub', 'Mul', 'Div', 'Pow', 'And', 'Or', 'Xor', 'Equal', 'Greater', 'Less']
    .map((op) => [op, broadcast])),
  PRelu: prelu, Reshape: reshape, Cast: cast, Tile: tile,
  Concat: given('axis', int(1)),
  Pad: (node) => {
    const paddings = intsAttribute(node, 'paddings', undefined);
    if (paddings === undefined) return node;
    return { ...node, attributes: { ...without(node.attributes, 'paddings'), pads: ints(paddings) } };
  },
  Selu: (node, { opset }) => (opset >= 6 ? node : {
    ...node,
    attributes: { alpha: float(floatAttribute(node, 'alpha', 1.6732)), gamma: float(floatAttribute(node, 'gamma', 1.0507)) },
  }),
};
