import { type Attribute, type Graph, type Node, type ValueInfo, int, intAttribute } from '../graph/ir.ts';
import { dataTypeOf, dtypeOf } from '../graph/onnx.ts';
import { type DType, type Tensor, isFloat, tensor } from '../tensor/tensor.ts';

/**
 * The same computation with every float16 and bfloat16 value a float32, so that it can be trained: weights, inputs,
 * outputs, constants, and what Cast and other operators are asked to produce. Casts of weights and inputs that thereby
 * do nothing are dropped. What is written after training is a float32 model.
 *
 * A model whose inputs, outputs or weights are float64 is treated in the same way. One that uses float64 in passing, as
 * exporters do in the arithmetic of shapes, keeps it there.
 */
export function inFloat32(graph: Graph): Graph {
  const narrowed = new Set<DType>(isDouble(graph) ? ['float16', 'bfloat16', 'float64'] : ['float16', 'bfloat16']);
  const convert = (t: Tensor): Tensor => (narrowed.has(t.dtype) ? asFloat32(t) : t);
  const relabel = (v: ValueInfo): ValueInfo => (narrowed.has(v.dtype) ? { ...v, dtype: 'float32' } : v);
  const attribute = (name: string, a: Attribute): Attribute => {
    if (a.type === 'tensor') return narrowed.has(a.value.dtype) ? { type: 'tensor', value: asFloat32(a.value) } : a;
    const asked = a.type === 'int' && typeSettings.has(name) ? dtypeOf(a.value) : undefined;
    return asked !== undefined && narrowed.has(asked) ? int(dataTypeOf.float32) : a;
  };
  const nodes = graph.nodes.map((node): Node => {
    const settings = Object.entries(node.attributes);
    const changed = settings.some(([name, a]) => attribute(name, a) !== a);
    return changed ? { ...node, attributes: Object.fromEntries(settings.map(([name, a]) => [name, attribute(name, a)])) } : node;
  });
  const touched = [...graph.inputs, ...graph.outputs, ...graph.initializers.values()].some(({ dtype }) => narrowed.has(dtype))
    || nodes.some((node, i) => node !== graph.nodes[i]);
  if (!touched) return graph;
  return withoutIdleCasts({
    ...graph,
    inputs: graph.inputs.map(relabel),
    outputs: graph.outputs.map(relabel),
    initializers: new Map([...graph.initializers].map(([name, t]) => [name, convert(t)])),
    nodes,
  });
}

/** Attributes by which operators name the element type that they produce or compute in. */
const typeSettings = new Set(['to', 'dtype', 'output_dtype', 'output_datatype', 'stash_type', 'softmax_precision']);

/** Whether float64 is what the model is in, and not just what some of its shapes are computed in. */
const isDouble = ({ inputs, outputs, initializers, literals }: Graph): boolean =>
  [...inputs, ...outputs].some(({ dtype }) => dtype === 'float64')
  || [...initializers].some(([name, t]) => t.dtype === 'float64' && t.data.length > 1 && literals?.has(name) !== true);

/** Casts to float32 of a weight or an input that is float32: whoever used the result uses the value itself. */
function withoutIdleCasts(graph: Graph): Graph {
  const floats = new Set([...graph.inputs, ...[...graph.initializers].map(([name, { dtype }]) => ({ name, dtype }))]
    .flatMap(({ name, dtype }) => (dtype === 'float32' ? [name] : [])));
  const outputs = new Set(graph.outputs.map(({ name }) => name));
  const source = new Map<string, string>();
  const nodes: Node[] = [];
  for (const node of graph.nodes) {
    const inputs = node.inputs.map((name) => source.get(name) ?? name);
    const [from = '', to = ''] = [inputs[0], node.outputs[0]];
    const idle = node.op === 'Cast' && node.domain === '' && dtypeOf(intAttribute(node, 'to', 0)) === 'float32'
      && floats.has(from) && !outputs.has(to);
    if (idle) source.set(to, from);
    else nodes.push({ ...node, inputs });
  }
  return { ...graph, nodes };
}

/** The tensor in float32; numbers beyond its range become its largest, since such a number stands for "none passes". */
function asFloat32(t: Tensor): Tensor<'float32'> {
  if (!isFloat(t.dtype)) throw new Error(`${t.dtype} is no floating-point type`);
  const values = new Float32Array(t.data.length);
  switch (t.dtype) {
    case 'float16': {
      const table = (halves ??= Float32Array.from({ length: 1 << 16 }, (_, bits) => fromHalf(bits)));
      for (let i = 0; i < values.length; i++) values[i] = table[Number(t.data[i])]!;
      break;
    }
    case 'bfloat16': {
      const bits = new Uint32Array(values.buffer);
      for (let i = 0; i < bits.length; i++) bits[i] = Number(t.data[i]) << 16;
      break;
    }
    default:
      for (let i = 0; i < values.length; i++) {
        const x = Number(t.data[i]);
        values[i] = Number.isFinite(x) ? Math.min(largest, Math.max(-largest, x)) : x;
      }
  }
  return tensor('float32', t.shape, values);
}

const largest = (2 - 2 ** -23) * 2 ** 127;

let halves: Float32Array | undefined;

/** The number behind a float16: sign, 5 bits of exponent, 10 of fraction. */
function fromHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15));
}
