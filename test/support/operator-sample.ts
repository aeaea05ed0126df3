import fc from 'fast-check';
import { InferenceSession, Tensor as OrtTensor } from 'onnxruntime-node';
import { encodeModel } from '../../src/graph/encode.ts';
import { type Attributes, type Node, type TypedGraph, latestOpset, showType } from '../../src/graph/ir.ts';
import { neededBy } from '../../src/graph/upgrades.ts';
import { type BatchAxis, leading } from '../../src/ops/batch.ts';
import { type GraphBuilder, type Value, graphBuilder } from '../../src/ops/builder.ts';
import type { BatchResult, GradientContext, Operator } from '../../src/ops/operator.ts';
import { noGradientOf, operatorOf, semantics } from '../../src/ops/table.ts';
import { type DType, type Tensor, type TensorType, float32, int64, isFloat, sizeOf, tensor } from '../../src/tensor/tensor.ts';
import { testRandom } from './random-network.ts';

/** One operand of a node under test. */
export interface Operand {
  readonly value: Tensor;
  /** A constant of the graph (axes, shapes, literals) rather than an input. */
  readonly constant?: boolean;
  /** Where it carries the batch. */
  readonly batch?: BatchAxis | undefined;
}

/** A node with operands to test an operator's entry by. */
export interface Sample {
  /** The key of the table: `Add`, `com.microsoft:FastGelu`. */
  readonly op: string;
  readonly inputs: readonly (Operand | undefined)[];
  readonly attributes?: Attributes;
  /** How many outputs the node has; default 1. */
  readonly outputs?: number;
  /** Which of them it leaves unnamed; default none. */
  readonly omitted?: readonly number[];
}

/** An operand with the batch in front, and one that all rows share. */
export const given = (value: Tensor): Operand => ({ value, batch: leading });
export const shared = (value: Tensor): Operand => ({ value });

export const constantOperand = (value: Tensor): Operand => ({ value, constant: true });
const showOperand = (o: Operand | undefined): string => (o === undefined ? '' : showType(o.value));

/** `Add(float32[2, 3]; float32[3]) {}`, for messages of failing tests. */
export function shapes({ op, inputs, attributes = {} }: Sample): string {
  const settings = JSON.stringify(attributes, (_, v: unknown) => (typeof v === 'bigint' ? String(v) : v));
  return `${op}(${inputs.map(showOperand).join('; ')}) ${settings}`;
}

export interface Built {
  readonly b: GraphBuilder;
  readonly node: Node;
  readonly operator: Operator;
}

/** The node in a graph: operand i is the input `x{i}`, output k is `y{k}`. */
export function build(sample: Sample): Built {
  const { b, node } = buildNode(sample);
  return { b, node, operator: operatorOf(node) };
}

/** The same for any entry, composite ones too. */
export function buildNode(sample: Sample): Omit<Built, 'operator'> {
  const colon = sample.op.indexOf(':');
  const named = { op: sample.op.slice(colon + 1), domain: colon < 0 ? '' : sample.op.slice(0, colon) };
  const opset = Math.max(latestOpset, neededBy({ ...named, inputs: sample.inputs.map((o, i) => (o === undefined ? '' : `x${i}`)) }));
  const b = graphBuilder(semantics, { ...graphBuilder(semantics).build([]), opset });
  const inputs = sample.inputs.map((o, i) =>
    (o === undefined ? '' : o.constant === true ? b.constant(o.value)
      : b.input(`x${i}`, { dtype: o.value.dtype, shape: o.value.shape })));
  const node: Node = {
    ...named, name: 'node', inputs,
    outputs: Array.from({ length: sample.outputs ?? 1 }, (_, k) => (sample.omitted?.includes(k) ? '' : `y${k}`)),
    attributes: sample.attributes ?? {},
  };
  b.add(node);
  return { b, node };
}

/** A gradient rule's context, with an input `dy{k}` for each float output named in `cotangents` (default: all). */
export function gradientContext({ b, node }: Built, sample: Sample, wanted: readonly number[],
  cotangents?: readonly number[]): GradientContext {
  return {
    b, node, inputs: node.inputs, outputs: node.outputs,
    outputGradients: node.outputs.map((y, k) =>
      (isFloat(b.type(y).dtype) && (cotangents?.includes(k) ?? true) ? b.input(`dy${k}`, b.type(y)) : undefined)),
    needed: sample.inputs.map((_, i) => wanted.includes(i)),
  };
}

/** Gradients of the wanted inputs; undefined where the rule says zero. Fails where the entry has no rule. */
export function gradients(built: Built, context: GradientContext): readonly (Value | undefined)[] {
  const { b, node, operator: { gradient: rule } } = built;
  const obstacle = noGradientOf({
    node, inputs: node.inputs.map((v) => (v === '' ? undefined : b.type(v))), constants: node.inputs.map(b.constantOf),
    reached: context.outputGradients.map((g) => g !== undefined),
  });
  if (obstacle !== undefined || 'reason' in rule) throw new Error(`${node.op} has no gradient: ${obstacle?.reason}`);
  return rule(context).map((g, i) => (context.needed[i] === true ? g : undefined));
}

/** The inputs that gradients can be asked for. */
export const differentiable = ({ inputs }: Sample): number[] =>
  inputs.flatMap((o, i) => (o !== undefined && o.constant !== true && isFloat(o.value.dtype) ? [i] : []));

export function batchResult({ b, node, operator }: Built, sample: Sample): BatchResult {
  return operator.batch({
    node,
    inputs: sample.inputs.map((o) => o && { dtype: o.value.dtype, shape: o.value.shape }),
    constants: sample.inputs.map((o) => (o?.constant === true ? o.value : undefined)),
    outputs: node.outputs.map((y) => b.type(y)),
    batch: sample.inputs.map((o) => o?.batch),
  });
}

export type Feeds = Readonly<Record<string, Tensor>>;
export type Compiled = (feeds: Feeds) => Promise<Record<string, Tensor>>;

const toOrt = (t: Tensor): OrtTensor => new OrtTensor(t.dtype as 'float32', t.data as Float32Array, t.shape);

const fromOrt = (t: OrtTensor): Tensor => tensor(t.type as DType, t.dims, t.data as never);

/** Runs `use` with the compiled graph; feeds that the graph does not take are left out. */
export async function withSession<T>(graph: TypedGraph, use: (run: Compiled) => Promise<T>): Promise<T> {
  const session = await InferenceSession.create(encodeModel(graph), { logSeverityLevel: 3, intraOpNumThreads: 1 });
  const names = new Set(graph.inputs.map((v) => v.name));
  try {
    return await use(async (feeds) => {
      const given = Object.entries(feeds).filter(([name]) => names.has(name));
      const found = await session.run(Object.fromEntries(given.map(([name, t]) => [name, toOrt(t)])));
      return Object.fromEntries(Object.entries(found).map(([name, t]) => [name, fromOrt(t)]));
    });
  } finally {
    await session.release();
  }
}

export const feedsOf = (sample: Sample): Record<string, Tensor> =>
  Object.fromEntries(sample.inputs.flatMap((o, i) =>
    (o === undefined || o.constant === true ? [] : [[`x${i}`, o.value] as const])));

export const dot = (a: Tensor, b: Tensor): number => {
  let sum = 0;
  for (let i = 0; i < a.data.length; i++) sum += Number(a.data[i]) * Number(b.data[i]);
  return sum;
};

export const randomLike = (random: () => number, { shape }: TensorType): Tensor<'float32'> =>
  float32(Array.from({ length: sizeOf(shape) }, () => random() * 2 - 1), shape);

/** What the elements of a random float tensor may be. */
export interface Domain {
  readonly low?: number;
  readonly high?: number;
  /** Points to keep away from, where a function has a kink or a pole. */
  readonly avoid?: readonly number[];
  /** No two elements closer than 0.25, so that maxima and orders do not change under small steps. */
  readonly distinct?: boolean;
}

/** Distance kept from the points of `avoid`: more than a finite difference reaches. */
const margin = 0.1;

export function floats(shape: readonly number[],
  { low = -2, high = 2, avoid = [], distinct = false }: Domain = {}): fc.Arbitrary<Tensor<'float32'>> {
  return fc.integer({ min: 1, max: 2 ** 30 }).map((seed) => {
    const random = testRandom(seed);
    const count = sizeOf(shape);
    if (distinct) {
      const order = Array.from({ length: count }, (_, i) => ({ i, key: random() })).sort((a, b) => a.key - b.key);
      return float32(order.map(({ i }) => (i - count / 2) * 0.25 + 0.1), shape);
    }
    const draw = (): number => {
      const x = low + random() * (high - low);
      return avoid.some((p) => Math.abs(x - p) < margin) ? draw() : x;
    };
    return float32(Array.from({ length: count }, draw), shape);
  });
}

/** Whole numbers from `low` to `high`, both included. */
export const wholes = (shape: readonly number[], low: number, high: number, dtype: 'int32' | 'int64' = 'int64'): fc.Arbitrary<Tensor> =>
  fc.array(fc.integer({ min: low, max: high }), { minLength: sizeOf(shape), maxLength: sizeOf(shape) })
    .map((values) => (dtype === 'int32' ? tensor('int32', shape, Int32Array.from(values)) : int64(values, shape)));

/** A sample's operand with fast-check's choice of values. */
export const floatOperand = (shape: readonly number[], domain?: Domain, batch?: BatchAxis): fc.Arbitrary<Operand> =>
  floats(shape, domain).map((value) => ({ value, batch }));
