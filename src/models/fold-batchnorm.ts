import { type Node, type TypedGraph, floatAttribute, intAttribute } from '../graph/ir.ts';
import { type FloatTensor, float32, sizeOf } from '../tensor/tensor.ts';

/**
 * The graph with each frozen BatchNormalization behind a frozen Conv folded into the kernel: the normalisation of a
 * frozen network costs nothing then. Where kernel, scale or shift are trained the nodes stay, the frozen statistics as
 * the affine map that they are.
 *
 * @param trained names of the parameters that are trained; all other initializers count as frozen
 */
export function withFoldedBatchNorm(graph: TypedGraph, trained: ReadonlySet<string>): TypedGraph {
  const maker = new Map(graph.nodes.flatMap((node) => node.outputs.map((output) => [output, node] as const)));
  const users = new Map<string, number>();
  for (const name of [...graph.nodes.flatMap(({ inputs }) => inputs), ...graph.outputs.map(({ name: output }) => output)]) {
    users.set(name, (users.get(name) ?? 0) + 1);
  }
  const frozen = (name: string | undefined): FloatTensor | undefined => {
    const value = name === undefined || trained.has(name) ? undefined : graph.initializers.get(name);
    return value?.dtype === 'float32' ? value as FloatTensor : undefined;
  };

  const initializers = new Map(graph.initializers);
  const literals = new Set(graph.literals);
  const types = new Map(graph.types);
  const folded = new Map<Node, Node>();
  const gone = new Set<Node>();
  for (const norm of graph.nodes) {
    const conv = foldable(norm, maker.get(norm.inputs[0] ?? ''));
    if (conv === undefined || users.get(norm.inputs[0]!) !== 1) continue;
    const kernel = frozen(conv.inputs[1]);
    const bias = (conv.inputs[2] ?? '') === '' ? 'none' : frozen(conv.inputs[2]);
    const statistics = norm.inputs.slice(1).map(frozen);
    if (kernel === undefined || bias === undefined || !statistics.every((t) => t !== undefined)) continue;
    const affine = affineOf(norm, statistics);
    const add = (part: string, value: FloatTensor): string => {
      const name = `${norm.name}/${part}`;
      initializers.set(name, value);
      literals.add(name);
      types.set(name, { dtype: 'float32', shape: value.shape });
      return name;
    };
    folded.set(norm, {
      ...conv, outputs: norm.outputs.slice(0, 1),
      inputs: [conv.inputs[0]!, add('kernel', scaledKernel(kernel, affine.scale)), add('bias', float32(
        affine.shift.map((shift, channel) => shift + (bias === 'none' ? 0 : bias.data[channel]!) * affine.scale[channel]!),
      ))],
    });
    gone.add(conv);
  }
  if (folded.size === 0) return graph;
  return { ...graph, initializers, literals, types, nodes: graph.nodes.flatMap((node) => (gone.has(node) ? [] : [folded.get(node) ?? node])) };
}

/** The convolution that a normalisation with frozen statistics follows. */
const foldable = (norm: Node, conv: Node | undefined): Node | undefined =>
  (norm.op === 'BatchNormalization' && norm.domain === '' && intAttribute(norm, 'training_mode', 0) === 0
    && conv?.op === 'Conv' && conv.domain === '' ? conv : undefined);

/** y = scale·x + shift for each channel, in float64. */
function affineOf(norm: Node, [gamma, beta, mean, variance]: readonly FloatTensor[]): { scale: number[]; shift: number[] } {
  const epsilon = floatAttribute(norm, 'epsilon', 1e-5);
  const scale = Array.from(gamma!.data, (g, i) => g / Math.sqrt(variance!.data[i]! + epsilon));
  return { scale, shift: scale.map((s, i) => beta!.data[i]! - mean!.data[i]! * s) };
}

function scaledKernel(kernel: FloatTensor, scale: readonly number[]): FloatTensor {
  const each = sizeOf(kernel.shape.slice(1));
  return { ...kernel, data: kernel.data.map((w, i) => w * scale[Math.floor(i / each)]!) };
}
