import { type Attributes, type Node, float, floatAttribute, int, stringAttribute } from '../graph/ir.ts';
import { type GraphBuilder, type Value, add, mul } from './builder.ts';
import type { Composite } from './composite.ts';
import { badOperands } from './operands.ts';
import type { Operator } from './operator.ts';
import { castTo } from './rules.ts';

/** Activations that are fused behind a product, and the names of their settings in the order in which they are given. */
const settingsOf: Readonly<Record<string, readonly string[]>> = {
  Relu: [], Tanh: [], Sigmoid: [], Softplus: [], Softsign: [], HardSwish: [], Gelu: [],
  LeakyRelu: ['alpha'], Elu: ['alpha'], ThresholdedRelu: ['alpha'], HardSigmoid: ['alpha', 'beta'],
};

/** x behind the activation that a fused node names; settings that it does not give have their usual values. */
function activated(b: GraphBuilder, node: Node, x: Value, settings: readonly number[]): Value {
  const name = stringAttribute(node, 'activation', '');
  if (name === '') return x;
  if (name === 'Clip') {
    const [low, high] = settings.map((value) => castTo(b, b.scalar(value), b.type(x).dtype));
    return b.op('Clip', [x, ...(low === undefined ? [] : [low]), ...(high === undefined ? [] : [high])]);
  }
  const names = settingsOf[name];
  if (names === undefined) throw badOperands({ node }, `activation ${name}`, `one of ${[...Object.keys(settingsOf), 'Clip'].join(', ')}`);
  return b.op(name, [x], Object.fromEntries(names.flatMap((setting, i) => (settings[i] === undefined ? [] : [[setting, float(settings[i])]]))));
}

/** The attributes of the node behind a fusion. */
const only = (node: Node, ...names: readonly string[]): Attributes =>
  Object.fromEntries(names.flatMap((name) => (node.attributes[name] === undefined ? [] : [[name, node.attributes[name]]])));

/** Settings that are given by name. */
const named = (node: Node, ...names: readonly string[]): number[] => {
  const values = names.map((name) => (node.attributes[name] === undefined ? undefined : floatAttribute(node, name, 0)));
  const end = values.findIndex((value) => value === undefined);
  return values.slice(0, end < 0 ? values.length : end) as number[];
};

const fusedGemm: Composite = {
  learned: [1, 2],
  biases: [2],
  expand: ({ b, node, inputs }) => {
    const product = b.op('Gemm', inputs.flatMap((v) => (v === undefined ? [] : [v])), only(node, 'alpha', 'beta', 'transA', 'transB'));
    return [activated(b, node, product, named(node, 'activation_alpha', 'activation_beta'))];
  },
};

/** A convolution, something of its own shape added, and an activation. */
const fusedConv: Composite = {
  learned: [1, 2],
  biases: [2],
  expand: ({ b, node, inputs: [x, weight, bias, added] }) => {
    const params = node.attributes['activation_params'];
    const image = b.op('Conv', bias === undefined ? [x!, weight!] : [x!, weight!, bias],
      only(node, 'auto_pad', 'dilations', 'group', 'kernel_shape', 'pads', 'strides'));
    return [activated(b, node, added === undefined ? image : add(b, image, added), params?.type === 'floats' ? params.value : [])];
  },
};

const fusedMatMulActivation: Composite = {
  learned: [1],
  expand: ({ b, node, inputs: [x, y] }) => {
    const product = b.op('FusedMatMul', [x!, y!], only(node, 'alpha', 'transA', 'transB', 'transBatchA', 'transBatchB'), 'com.microsoft');
    return [activated(b, node, product, named(node, 'activation_alpha', 'activation_beta'))];
  },
  lacksKernel: () => true,
};

/** FusedMatMul under its older name. */
const transposeMatMul: Composite = {
  learned: [1],
  expand: ({ b, node, inputs: [x, y] }) => [b.op('FusedMatMul', [x!, y!], only(node, 'alpha', 'transA', 'transB', 'transBatchA', 'transBatchB'), 'com.microsoft')],
};

const gemmFastGelu: Composite = {
  learned: [1, 2],
  biases: [2],
  expand: ({ b, inputs: [x, weight, bias] }) => {
    const product = b.op('MatMul', [x!, weight!]);
    return [b.op('FastGelu', bias === undefined ? [product] : [product, bias], {}, 'com.microsoft')];
  },
  lacksKernel: () => true,
};

/** x + bias + skip. */
const biasAdd: Composite = {
  learned: [1],
  biases: [1],
  expand: ({ b, inputs: [x, bias, skip] }) => [add(b, add(b, x!, bias!), skip!)],
  lacksKernel: () => true,
};

/** The first half of x + bias times Gelu of the second. */
const biasSplitGelu: Composite = {
  learned: [1],
  biases: [1],
  expand: ({ b, inputs: [x, bias] }) => {
    const half = b.shape(x!).at(-1)! / 2;
    const [left, right] = b.ops('Split', [add(b, x!, bias!), b.ints([half, half])], 2, { axis: int(-1) });
    return [mul(b, left!, b.op('Gelu', [right!]))];
  },
  lacksKernel: () => true,
};

/** DequantizeLinear under its older name: one scale for all, unless an axis is given. */
const dequantizeLinear: Composite = {
  expand: ({ b, node, inputs }) => [b.op('DequantizeLinear', inputs.flatMap((v) => (v === undefined ? [] : [v])), only(node, 'axis'))],
};

/** Products with what ONNX Runtime's optimizer fuses to them. */
export const fusedProducts = {
  'com.microsoft:FusedGemm': fusedGemm, 'com.microsoft:FusedConv': fusedConv,
  'com.microsoft:FusedMatMulActivation': fusedMatMulActivation, 'com.microsoft:TransposeMatMul': transposeMatMul,
  'com.microsoft:GemmFastGelu': gemmFastGelu, 'com.microsoft:BiasAdd': biasAdd, 'com.microsoft:BiasSplitGelu': biasSplitGelu,
  'com.microsoft:DequantizeLinear': dequantizeLinear,
} satisfies Record<string, Operator | Composite>;
