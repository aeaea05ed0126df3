import { type Attributes, type Node, int, intsAttribute, showShape, stringAttribute } from '../graph/ir.ts';
import { dataTypeOf } from '../graph/onnx.ts';
import { type Shape, float32, sizeOf, toNumbers } from '../tensor/tensor.ts';
import { type GraphBuilder, type Value, filled, matmul, reduceSum, reshape } from './builder.ts';
import { badOperands, operand, outputGradient } from './operands.ts';
import type { GradientContext, OperandContext, Operator } from './operator.ts';
import { alongAxes, fromFront, notDifferentiable, unknownOperand } from './rules.ts';

/** How one axis is resampled. */
interface Resampled {
  readonly axis: number;
  readonly from: number;
  readonly to: number;
  /** Output length over input length, as coordinates are scaled by it. */
  readonly scale: number;
  /** The part of the axis that is looked at, in tf_crop_and_resize; [0, 1] otherwise. */
  readonly region: readonly [number, number];
}

type Read = (index: number) => readonly number[] | undefined;

const isCrop = (node: Node): boolean =>
  stringAttribute(node, 'coordinate_transformation_mode', 'half_pixel') === 'tf_crop_and_resize';

/** Single precision and rounded half up, as the engine works out sizes. */
const rounded = (n: number, scale: number): number => Math.floor(Math.fround(n * scale) + 0.5);
const floored = (n: number, scale: number): number => Math.floor(Math.fround(n * scale));

/** Every axis that changes, from the operands roi (1), scales (2) and sizes (3). */
function resampledAxes(node: Node, shape: Shape, read: Read): Resampled[] {
  const axes = intsAttribute(node, 'axes', shape.map((_, i) => i)).map((axis) => fromFront(node, axis, shape.length));
  const [roi, scales, sizes] = [isCrop(node) ? read(1) : undefined, read(2) ?? [], read(3) ?? []];
  const given = scales.length > 0 ? scales : sizes;
  if (given.length !== axes.length || (scales.length > 0 && sizes.length > 0) || !given.every((n) => n > 0)) {
    throw badOperands({ node }, `scales ${showShape(scales)}, sizes ${showShape(sizes)} for ${showShape(shape)}`,
      `either scales or sizes, ${axes.length} of them and positive`);
  }
  const policy = stringAttribute(node, 'keep_aspect_ratio_policy', 'stretch');
  const ratios = axes.map((axis, i) => Math.fround(given[i]! / shape[axis]!));
  const common = policy === 'not_larger' ? Math.min(...ratios) : Math.max(...ratios);
  return axes.map((axis, i): Resampled => {
    const from = shape[axis]!;
    const region: readonly [number, number] = [roi?.[i] ?? 0, roi?.[axes.length + i] ?? 1];
    if (scales.length > 0) return { axis, from, to: floored(from, given[i]!), scale: given[i]!, region };
    if (policy === 'stretch') return { axis, from, to: given[i]!, scale: ratios[i]!, region };
    return { axis, from, to: rounded(from, common), scale: common, region };
  }).filter(({ from, to, scale, region }) => from !== to || scale !== 1 || region[0] !== 0 || region[1] !== 1);
}

function contextAxes(context: OperandContext): Resampled[] {
  const read: Read = (index) => {
    if (context.inputs[index] === undefined || sizeOf(context.inputs[index].shape) === 0) return undefined;
    const found = context.constants[index];
    if (found === undefined) throw unknownOperand(context.node, index);
    return toNumbers(found);
  };
  return resampledAxes(context.node, operand(context, 0).shape, read);
}

const builtAxes = ({ b, node, inputs }: GradientContext): Resampled[] => resampledAxes(node, b.shape(inputs[0]!), (index) => {
  const known = inputs[index] === undefined || inputs[index] === '' ? undefined : b.constantOf(inputs[index]);
  return known === undefined ? undefined : toNumbers(known);
});

/** Whether each entry of the axis is written `to / from` times side by side: upsampling by a whole factor. */
function repeats(node: Node, { from, to, scale, region }: Resampled): boolean {
  if (stringAttribute(node, 'mode', 'nearest') !== 'nearest' || to !== from * scale || region[0] !== 0) return false;
  const coordinates = stringAttribute(node, 'coordinate_transformation_mode', 'half_pixel');
  const rounding = stringAttribute(node, 'nearest_mode', 'round_prefer_floor');
  return Number.isInteger(scale) && (coordinates === 'asymmetric' ? rounding === 'floor'
    : coordinates === 'half_pixel' && rounding.startsWith('round_prefer'));
}

/** An axis by itself can be asked for by its scale or its size; the size alone tells it where the scale follows from it. */
const isExpressible = ({ from, to, scale }: Resampled): boolean =>
  floored(from, scale) === to || Math.fround(to / from) === Math.fround(scale);

/**
 * The weights [to, from] by which entries of an axis make up the resampled ones: what the operator itself makes of a
 * unit matrix. It depends on no data, so the engine computes it once.
 */
function weights(b: GraphBuilder, node: Node, { from, to, scale, region }: Resampled, like: Value): Value {
  const { dtype } = b.type(like);
  const unit = b.op('EyeLike', [filled(b, 0, [from, from], dtype)], { dtype: int(dataTypeOf[dtype]) });
  const bySize = floored(from, scale) !== to;
  const roi = isCrop(node) ? b.constant(float32([0, 0, region[0], 0, 1, 1, region[1], 1])) : '';
  const resized = b.op('Resize', [
    reshape(b, unit, [1, 1, from, from]), roi,
    ...(bySize ? ['', b.ints([1, 1, to, from])] : [b.constant(float32([1, 1, scale, 1]))]),
  ], alone(node.attributes));
  return reshape(b, resized, [to, from]);
}

/** The settings of one axis alone. What is extrapolated does not depend on the input: its weight is 0. */
const alone = (attributes: Attributes): Attributes => Object.fromEntries(Object.entries(attributes)
  .filter(([name]) => !['axes', 'keep_aspect_ratio_policy', 'extrapolation_value'].includes(name)));

/** The adjoint of resampling one axis. */
function spread(b: GraphBuilder, node: Node, g: Value, resampled: Resampled): Value {
  const { axis, from, to } = resampled;
  const shape = b.shape(g);
  const back = shape.with(axis, from);
  const [outer, inner] = [sizeOf(shape.slice(0, axis)), sizeOf(shape.slice(axis + 1))];
  if (repeats(node, resampled)) {
    return reshape(b, reduceSum(b, reshape(b, g, [outer, from, to / from, inner]), [2]), back);
  }
  const w = weights(b, node, resampled, g);
  const product = inner === 1
    ? matmul(b, reshape(b, g, [outer, to]), w)
    : matmul(b, w, reshape(b, g, [outer, to, inner]), { transposeX: true });
  return reshape(b, product, back);
}

const resize: Operator = {
  sizes: [3],
  shape: (context) => {
    const { dtype, shape } = operand(context, 0);
    const found = contextAxes(context);
    return [{ dtype, shape: shape.map((n, i) => found.find(({ axis }) => axis === i)?.to ?? n) }];
  },
  batch: alongAxes((context) => contextAxes(context).map(({ axis }) => axis), 'resamples', 'resize the spatial axes only'),
  gradient: (context) => {
    const { b, node } = context;
    return [builtAxes(context).reduce((g, resampled) => spread(b, node, g, resampled), outputGradient(context))];
  },
  obstacle: (context) => (contextAxes(context).every(isExpressible) ? undefined : notDifferentiable(
    `keep_aspect_ratio_policy "${stringAttribute(context.node, 'keep_aspect_ratio_policy', '')}" rounds a size so that `
      + 'no scale or size of one axis alone describes what it does', 'export the model with explicit sizes (policy stretch)',
  )),
  untrained: [1, 2],
};

/** Resampling of axes. The gradient is the transpose of a product with a small matrix for each axis. */
export const resizing = { Resize: resize } satisfies Record<string, Operator>;
