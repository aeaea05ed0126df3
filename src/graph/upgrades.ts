import { GhostgradError } from '../errors.ts';
import { type DType, type Tensor, float32, int64, tensor } from '../tensor/tensor.ts';
import {
  type Attribute,
  type Attributes,
  type Node,
  floatAttribute,
  int,
  intAttribute,
  intsAttribute,
  showNode,
  string,
  stringAttribute,
} from './ir.ts';
import { dataTypeOf, toInt64 } from './onnx.ts';

/** What a rewrite may ask and add. */
export interface UpgradeContext {
  /** Where the graph comes from: its version of the standard operator set. */
  readonly opset: number;
  /** A value that holds this constant. */
  readonly constant: (hint: string, value: Tensor) => string;
  /** A name like this that no value has. */
  readonly name: (hint: string) => string;
  /** A new value, made by one more node of the standard set. */
  readonly op: (op: string, inputs: readonly string[], attributes?: Attributes) => string;
  /** The tensor behind a value, when it is an initializer. */
  readonly tensorOf: (value: string) => Tensor | undefined;
  /** The number of axes of a value, where that is known without shape inference. */
  readonly rankOf: (value: string) => number | undefined;
  readonly dtypeOf: (value: string) => DType;
  /** Whether anything uses a value. */
  readonly isUsed: (value: string) => boolean;
}

/** How the form that an operator had in older operator sets is written in the newest. */
export interface Change {
  /** Graphs of lower versions than this have the old form. */
  readonly below: number;
  /** Nodes with the same outputs; helpers come before them through the context. */
  readonly rewrite: (node: Node, context: UpgradeContext) => readonly Node[];
}

/** Operators that did not exist in opset 21, and the version that brought them. */
const introducedIn: Readonly<Record<string, number>> = {
  Attention: 23, RMSNormalization: 23, RotaryEmbedding: 23, Swish: 24, TensorScatter: 24, BitCast: 26, CumProd: 26,
};

/** The version that a node needs beyond opset 21: its operator's, or that of an input which came later. */
export function neededBy({ op, domain, inputs }: Pick<Node, 'op' | 'domain' | 'inputs'>): number {
  if (domain !== '') return 0;
  return op === 'Attention' && (inputs[6] ?? '') !== '' ? 24 : introducedIn[op] ?? 0;
}

function without(attributes: Attributes, ...names: readonly string[]): Attributes {
  return Object.fromEntries(Object.entries(attributes).filter(([name]) => !names.includes(name)));
}

const int64Vector = (values: readonly number[]): Tensor =>
  tensor('int64', [values.length], BigInt64Array.from(values, toInt64));

const asTensor = (attribute: Attribute): Tensor | undefined =>
  attribute.type === 'ints' ? int64Vector(attribute.value)
    : attribute.type === 'int' ? int64Vector([attribute.value])
      : attribute.type === 'floats' ? float32(attribute.value)
        : undefined;

/** Settings that became inputs, in this order after the first input. */
const attributesToInputs = (...names: readonly string[]): Change['rewrite'] => (node, context) => {
  const added = names.map((name) => {
    const attribute = node.attributes[name];
    const value = attribute && asTensor(attribute);
    return value === undefined ? '' : context.constant(name, value);
  });
  while (added.at(-1) === '') added.pop();
  return [{ ...node, inputs: [...node.inputs.slice(0, 1), ...added], attributes: without(node.attributes, ...names) }];
};

const reduction: Change = { below: 18, rewrite: attributesToInputs('axes') };

/** A float setting as a scalar of the element type of `like`. */
function scalarLike(hint: string, value: number, like: string, context: UpgradeContext): string {
  const dtype = context.dtypeOf(like);
  const scalar = context.constant(hint, float32([value], []));
  return dtype === 'float32' ? scalar : context.op('Cast', [scalar], { to: int(dataTypeOf[dtype]) });
}

/**
 * Before opset 13 these took all axes from `axis` on as one. Only where `axis` is not known to be the last one do
 * they need to be merged.
 */
const normalisation: Change = {
  below: 13,
  rewrite: (node, context) => {
    const [x = ''] = node.inputs;
    const axis = intAttribute(node, 'axis', 1);
    const rank = context.rankOf(x);
    const last = { ...node, attributes: { ...node.attributes, axis: int(-1) } };
    if (axis === -1 || (rank !== undefined && axis === rank - 1)) return [last];
    const flat = context.op('Flatten', [x], { axis: int(axis) });
    const result = context.op(node.op, [flat], last.attributes);
    return [{ ...node, op: 'Reshape', inputs: [result, context.op('Shape', [x])], attributes: { allowzero: int(1) } }];
  },
};

const refuse = (node: Node, what: string, found: string, expected: string): never => {
  throw new GhostgradError({
    what,
    where: showNode(node),
    found,
    expected,
    fix: 'export the model again with opset 17 or newer',
  });
};

/** More than one output meant training. The saved statistics of a batch are no longer outputs. */
const batchNormalization: Change = {
  below: 14,
  rewrite: (node, context) => {
    if (intAttribute(node, 'spatial', 1) !== 1) {
      refuse(
        node,
        'BatchNormalization with statistics for each position has no newer form',
        'spatial = 0',
        'spatial = 1',
      );
    }
    const saved = node.outputs.slice(3).find(context.isUsed);
    if (saved !== undefined) {
      refuse(node, 'the saved statistics of BatchNormalization have no newer form', `uses of "${saved}"`, 'none');
    }
    const isTraining = node.outputs.slice(1).some((output) => output !== '');
    return [{
      ...node,
      outputs: node.outputs.slice(0, 3),
      attributes: { ...without(node.attributes, 'spatial'), ...(isTraining && { training_mode: int(1) }) },
    }];
  },
};

/** The ratio became an input, and the mask, once of the type of the data, became bool. */
const dropout: Change = {
  below: 12,
  rewrite: (node, context) => {
    const [x = ''] = node.inputs;
    const [y = '', mask = ''] = node.outputs;
    const ratio =
      node.attributes['ratio'] && context.constant('ratio', float32([floatAttribute(node, 'ratio', 0.5)], []));
    const current = {
      ...node,
      inputs: ratio === undefined ? [x] : [x, ratio],
      attributes: without(node.attributes, 'ratio'),
    };
    if (!context.isUsed(mask)) return [{ ...current, outputs: [y] }];
    if (context.opset >= 10) return [current];
    const raw = context.name(`${mask}/bool`);
    return [
      { ...current, outputs: [y, raw] },
      {
        op: 'Cast',
        domain: '',
        name: `${node.name}/mask`,
        inputs: [raw],
        outputs: [mask],
        attributes: { to: int(dataTypeOf[context.dtypeOf(x)]) },
      },
    ];
  },
};

const clip: Change = {
  below: 11,
  rewrite: (node, context) => {
    const [x = ''] = node.inputs;
    const bound = (name: string): string =>
      (node.attributes[name] ? scalarLike(name, floatAttribute(node, name, 0), x, context) : '');
    return [{ ...node, inputs: [x, bound('min'), bound('max')], attributes: {} }];
  },
};

const pad: Change = {
  below: 11,
  rewrite: (node, context) => {
    const [x = ''] = node.inputs;
    const value = floatAttribute(node, 'value', 0);
    return [{
      ...node,
      inputs: [
        x, context.constant('pads', int64Vector(intsAttribute(node, 'pads', []))),
        ...(value === 0 ? [] : [scalarLike('value', value, x, context)]),
      ],
      attributes: without(node.attributes, 'pads', 'value'),
    }];
  },
};

/** Sizes became an input (13); an equal split must say into how many (18). */
const split: Change = {
  below: 18,
  rewrite: (node, context) => {
    const [current = node] = node.attributes['split'] ? attributesToInputs('split')(node, context) : [node];
    const isEqual = (current.inputs[1] ?? '') === '';
    return [
      isEqual ? { ...current, attributes: { ...current.attributes, num_outputs: int(node.outputs.length) } } : current,
    ];
  },
};

/**
 * Resize and Upsample before opset 11 mapped output position i to i / scale and, for `nearest`, rounded towards the
 * image's start when enlarging and away from it when shrinking.
 */
function oldResize(node: Node, x: string, scales: string, values: readonly number[] | undefined): readonly Node[] {
  const mode = stringAttribute(node, 'mode', 'nearest');
  const shrinks = values?.some((s) => s < 1) ?? false;
  if (mode === 'nearest' && shrinks && values?.some((s) => s > 1)) {
    refuse(
      node,
      `${node.op} that enlarges one axis and shrinks another has no newer form`,
      `scales ${values.join(', ')}`,
      'scales all ≥ 1 or all ≤ 1',
    );
  }
  return [{
    ...node,
    op: 'Resize',
    inputs: [x, '', scales],
    attributes: {
      mode: string(mode), coordinate_transformation_mode: string('asymmetric'),
      ...(mode === 'nearest' && { nearest_mode: string(shrinks ? 'ceil' : 'floor') }),
    },
  }];
}

const scalesOf = (value: string, context: UpgradeContext): readonly number[] | undefined => {
  const data = context.tensorOf(value)?.data;
  return data && Array.from(data, Number);
};

const upsample: Change = {
  below: 10,
  rewrite: (node, context) => {
    const [x = '', given = ''] = node.inputs;
    const attribute = node.attributes['scales'];
    const scales = attribute?.type === 'floats' ? context.constant('scales', float32(attribute.value)) : given;
    return oldResize(node, x, scales, scalesOf(scales, context));
  },
};

const resize: Change = {
  below: 13,
  rewrite: (node, context) => {
    const [x = '', scales = ''] = node.inputs;
    if (context.opset < 11) return oldResize(node, x, scales, scalesOf(scales, context));
    if (stringAttribute(node, 'coordinate_transformation_mode', '') !== 'tf_half_pixel_for_nn') return [node];
    if (stringAttribute(node, 'nearest_mode', 'round_prefer_floor') !== 'floor') {
      refuse(
        node,
        'a Resize mode that was removed',
        'tf_half_pixel_for_nn',
        'half_pixel, asymmetric, align_corners or pytorch_half_pixel',
      );
    }
    // floor((i + ½) / scale) is round((i + ½) / scale - ½) with halves rounded up.
    return [
      {
        ...node,
        attributes: {
          ...node.attributes,
          coordinate_transformation_mode: string('half_pixel'),
          nearest_mode: string('round_prefer_ceil'),
        },
      },
    ];
  },
};

/**
 * Scale and bias were given for each group (18), now for each channel (21). With groups as channels that is what
 * InstanceNormalization computes.
 */
const groupNormalization: Change = {
  below: 21,
  rewrite: (node, context) => {
    const [x = '', scale = '', bias = ''] = node.inputs;
    const groups = context.constant('groups', int64([0, intAttribute(node, 'num_groups', 1), -1]));
    const normalised = context.op('InstanceNormalization', [context.op('Reshape', [x, groups]), scale, bias], {
      epsilon: { type: 'float', value: floatAttribute(node, 'epsilon', 1e-5) },
    });
    return [
      { ...node, op: 'Reshape', inputs: [normalised, context.op('Shape', [x])], attributes: { allowzero: int(1) } },
    ];
  },
};

const gridSampleModes: Readonly<Record<string, string>> = { bilinear: 'linear', bicubic: 'cubic' };

const gridSample: Change = {
  below: 20,
  rewrite: (node) => {
    const mode = stringAttribute(node, 'mode', 'bilinear');
    return [{ ...node, attributes: { ...node.attributes, mode: string(gridSampleModes[mode] ?? mode) } }];
  },
};

/** The axis became an input, and counts from the back unless it is given. */
const fourier: Change = {
  below: 20,
  rewrite: (node, context) => [{
    ...node,
    inputs: [node.inputs[0] ?? '', node.inputs[1] ?? '', context.constant('axis', int64([intAttribute(node, 'axis', 1)], []))],
    attributes: without(node.attributes, 'axis'),
  }],
};

/** By operator; those not listed mean the same in opset 7 as now. Older forms become those of opset 7 first. */
export const changes: Readonly<Record<string, Change>> = {
  Slice: { below: 10, rewrite: attributesToInputs('starts', 'ends', 'axes') },
  TopK: { below: 10, rewrite: attributesToInputs('k') },
  Squeeze: { below: 13, rewrite: attributesToInputs('axes') },
  Unsqueeze: { below: 13, rewrite: attributesToInputs('axes') },
  ReduceSum: { below: 13, rewrite: attributesToInputs('axes') },
  ReduceMean: reduction,
  ReduceMax: reduction,
  ReduceMin: reduction,
  ReduceProd: reduction,
  ReduceL1: reduction,
  ReduceL2: reduction,
  ReduceSumSquare: reduction,
  ReduceLogSum: reduction,
  ReduceLogSumExp: reduction,
  Softmax: normalisation,
  LogSoftmax: normalisation,
  Hardmax: normalisation,
  BatchNormalization: batchNormalization,
  Dropout: dropout,
  Clip: clip,
  Pad: pad,
  Split: split,
  Upsample: upsample,
  Resize: resize,
  GroupNormalization: groupNormalization,
  GridSample: gridSample,
  DFT: fourier,
  Scatter: { below: 11, rewrite: (node) => [{ ...node, op: 'ScatterElements' }] },
};
