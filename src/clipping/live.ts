import type { Node, TypedGraph } from '../graph/ir.ts';
import type { Value } from '../ops/builder.ts';
import { type TensorType, bytesPerElement, sameShape, sizeOf } from '../tensor/tensor.ts';
import { executionOrder } from './schedule.ts';

/** Kernels of ONNX Runtime whose output is their first input under another shape. */
const renaming = new Set(['Reshape', 'Squeeze', 'Unsqueeze', 'Flatten', 'Identity']);

/** Kernels that write over their first input where nothing needs it any more; the arithmetic ones do not. */
const overwriting = new Set([
  'Relu', 'LeakyRelu', 'Elu', 'Selu', 'Tanh', 'Sigmoid', 'HardSigmoid', 'Softplus', 'Softmax', 'LogSoftmax', 'Clip', 'Cast',
  'ScatterElements',
]);

const bytesOf = ({ dtype, shape }: TensorType): number => bytesPerElement(dtype) * sizeOf(shape);

/** What a kernel allocates for itself while it runs. */
function scratchOf(node: Node, type: (v: Value) => TensorType): number {
  const output = type(node.outputs[0]!);
  switch (node.op) {
    // Either choice is masked on its own, at the size that it and the condition have together.
    case 'Where': return node.inputs.slice(1).reduce((sum, v) => {
      const together = broadcast(type(node.inputs[0]!).shape, type(v).shape);
      return sum + bytesPerElement(output.dtype) * sizeOf(together);
    }, 0);
    case 'Sum': return node.inputs.length > 2 ? bytesOf(output) : 0;
    case 'BiasGelu': return bytesOf(output);
    default: return 0;
  }
}

function broadcast(one: readonly number[], other: readonly number[]): number[] {
  const rank = Math.max(one.length, other.length);
  const at = (shape: readonly number[], i: number) => shape[i - rank + shape.length] ?? 1;
  return Array.from({ length: rank }, (_, i) => Math.max(at(one, i), at(other, i)));
}

/** A piece of memory: of the value that it was made for, and of those that took it over. */
interface Buffer {
  readonly type: TensorType;
  readonly from: number;
  until: number;
  /** Consumers of its present value that have not run yet. */
  waiting: number;
}

/**
 * The most bytes that activations, gradients and outputs of a step take at one time, as ONNX Runtime plans them without
 * arena and memory pattern: a value lives from the node that makes it to the last one that reads it, outputs to the end.
 * A kernel may rename or overwrite its input, needs scratch of its own, and a buffer that nothing reads any more is kept
 * where a later value of the same shape and element size can take it over (which saves an allocation, not memory). Inputs,
 * parameters among them, and constants are not counted.
 */
export function liveBytes(graph: TypedGraph): number {
  const order = executionOrder(graph);
  const type = (v: Value): TensorType => graph.types.get(v)!;
  const given = new Set([...graph.inputs.map(({ name }) => name), ...graph.initializers.keys()]);
  const kept = new Set(graph.outputs.map(({ name }) => name));
  const consumers = new Map<Value, number>();
  for (const { inputs } of order) for (const v of new Set(inputs)) consumers.set(v, (consumers.get(v) ?? 0) + 1);
  const all: Buffer[] = [];
  const buffers = new Map<Value, Buffer>();
  const free: Buffer[] = [];
  const hold = (v: Value, buffer: Buffer, at: number): void => {
    buffers.set(v, buffer);
    buffer.waiting += kept.has(v) ? Infinity : consumers.get(v) ?? 0;
    buffer.until = at;
    if (buffer.waiting === 0) free.unshift(buffer);
  };

  const scratch = order.map((node, at) => {
    node.outputs.filter((o) => o !== '').forEach((o, i) => {
      const input = buffers.get(node.inputs[0] ?? '');
      if (renaming.has(node.op) && !kept.has(o)) {
        // What is given stays where it is under any name.
        if (input !== undefined) hold(o, input, at);
        return;
      }
      const fits = (b: Buffer): boolean => sameShape(b.type.shape, type(o).shape) && bytesPerElement(b.type.dtype) === bytesPerElement(type(o).dtype);
      const taken = kept.has(o) ? undefined :
        i === 0 && overwriting.has(node.op) && input?.waiting === 1 && sizeOf(input.type.shape) === sizeOf(type(o).shape)
          && bytesPerElement(input.type.dtype) === bytesPerElement(type(o).dtype) ? input :
        type(o).shape.length === 0 ? undefined : free.find(fits);
      if (taken !== undefined && free.includes(taken)) free.splice(free.indexOf(taken), 1);
      const buffer = taken ?? { type: type(o), from: at, until: at, waiting: 0 };
      if (taken === undefined) all.push(buffer);
      hold(o, buffer, at);
    });
    for (const v of new Set(node.inputs)) {
      const buffer = given.has(v) ? undefined : buffers.get(v);
      if (buffer === undefined) continue;
      buffer.until = at;
      buffer.waiting -= 1;
      if (buffer.waiting === 0) free.unshift(buffer);
    }
    return scratchOf(node, type);
  });

  const change = new Float64Array(order.length + 1);
  for (const { type: of, from, until, waiting } of all) {
    change[from]! += bytesOf(of);
    if (waiting !== Infinity) change[until + 1]! -= bytesOf(of);
  }
  let live = 0;
  return scratch.reduce((peak, own, at) => Math.max(peak, (live += change[at]!) + own), 0);
}
