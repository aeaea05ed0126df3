import { InferenceSession, Tensor as OrtTensor } from 'onnxruntime-node';
import { encodeModel } from '../../src/graph/encode.ts';
import {
  type Attributes,
  type Dimension,
  type Graph,
  type Node,
  type ValueInfo,
  latestOpset,
} from '../../src/graph/ir.ts';
import { type DType, type Tensor, toNumbers } from '../../src/tensor/tensor.ts';

const toOrt = (t: Tensor): OrtTensor => new OrtTensor(t.dtype as 'float32', t.data as Float32Array, t.shape);

const options: InferenceSession.SessionOptions = { logSeverityLevel: 3, intraOpNumThreads: 1 };

/** Runs a model, given as bytes or as a path, and gives the outputs as plain numbers. */
export async function run(
  model: Uint8Array | string,
  feeds: Readonly<Record<string, Tensor>>,
): Promise<Record<string, { shape: readonly number[]; values: number[] }>> {
  const session = await (typeof model === 'string'
    ? InferenceSession.create(model, options)
    : InferenceSession.create(model, options));
  try {
    const outputs = await session.run(Object.fromEntries(Object.entries(feeds).map(([name, t]) => [name, toOrt(t)])));
    return Object.fromEntries(
      Object.entries(outputs).map(([name, t]) => [
        name,
        { shape: t.dims, values: Array.from(t.data as ArrayLike<number | bigint>, Number) },
      ]),
    );
  } finally {
    await session.release();
  }
}

export const runGraph = (graph: Graph, feeds: Readonly<Record<string, Tensor>>): ReturnType<typeof run> =>
  run(encodeModel(graph), feeds);

export const node = (
  op: string,
  inputs: readonly string[],
  outputs: readonly string[],
  attributes: Attributes = {},
  domain = '',
): Node => ({ op, domain, name: `${op}:${outputs[0] ?? ''}`, inputs, outputs, attributes });

export const value = (name: string, shape: readonly Dimension[] | null, dtype: DType = 'float32'): ValueInfo => ({
  name,
  dtype,
  shape,
});

export const graphOf = (parts: Partial<Graph> & Pick<Graph, 'nodes' | 'inputs' | 'outputs'>): Graph => ({
  name: 'test', opset: latestOpset, initializers: new Map(), metadata: {}, ...parts,
});

/** A graph in a form that `toEqual` compares by meaning: an absent set of literals is an empty one. */
export const comparable = (graph: Graph): unknown => ({
  ...graph,
  initializers: Object.fromEntries(
    [...graph.initializers].map(([name, t]) => [name, { dtype: t.dtype, shape: t.shape, values: toNumbers(t) }]),
  ),
  literals: [...(graph.literals ?? [])].sort(),
  domains: graph.domains ?? {},
});
