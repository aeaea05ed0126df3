import type { StepGraph } from '../clipping/step-graph.ts';
import type { TypedGraph } from '../graph/ir.ts';
import { graphBuilder } from '../ops/builder.ts';
import { semantics } from '../ops/table.ts';
import { sizeOf } from '../tensor/tensor.ts';

/**
 * The forward contractions of a step (the matrix products and convolutions that take parameters), each with inputs of
 * its own in a graph of nothing else: how fast it runs is the ceiling that ONNX Runtime's own kernels set at the model's
 * shapes. Of every result only one element is an output, so that nothing large is handed out.
 *
 * @returns the graph and its floating-point operations
 */
export function contractionsOf(step: Pick<StepGraph, 'graph' | 'layers' | 'rows'>): { readonly graph: TypedGraph; readonly flops: number } {
  const b = graphBuilder(semantics);
  const { types } = step.graph;
  const size = (value: string): number => sizeOf(types.get(value)!.shape);
  const seen = new Set<string>();
  const outputs: (readonly [string, string])[] = [];
  let flops = 0;
  for (const { sites, contraction: { T, d, p, groups } } of step.layers) {
    for (const { node, use } of sites) {
      if ((use.kind !== 'outer' && use.kind !== 'convolution') || seen.has(node.name)) continue;
      seen.add(node.name);
      const inputs = node.inputs.map((value, i) => (value === '' ? '' : b.input(`${node.name}:${i}`, types.get(value)!)));
      const result = b.op(node.op, inputs, node.attributes, node.domain);
      const axes = b.shape(result).map((_, axis) => axis);
      const element = b.op('Slice', [result, b.ints(axes.map(() => 0)), b.ints(axes.map(() => 1)), b.ints(axes)]);
      outputs.push([`${node.name}:element`, element]);
      // [N, d]·[d, p] → [N, p]: N·d·p is the root of the product of the three sizes, whichever operand is the parameter.
      flops += 2 * (use.kind === 'outer'
        ? Math.sqrt(size(node.inputs[0]!) * size(node.inputs[1]!) * size(node.outputs[0]!))
        : (step.rows * T * d * p) / groups / sites.length);
    }
  }
  return { graph: b.build(outputs, 'contractions'), flops: Math.round(flops) };
}
