import type { Graph } from '../graph/ir.ts';

/** The last layer of a model: the parameters met first on the way back from an output, up to a matrix. */
export interface LastLayer {
  /** Names of its parameters, from the output on. */
  readonly parameters: readonly string[];
  /** The value that its matrix is applied to: what a head would be put on. */
  readonly features: string;
}

/** Whether a name is that of a float32 parameter, and no constant of the program. */
export const isParameter = ({ initializers, literals }: Graph, name: string): boolean =>
  initializers.get(name)?.dtype === 'float32' && literals?.has(name) !== true;

/**
 * The last layer, where the way back from the output does not fork before its matrix; undefined where it does.
 *
 * @param output default: the model's first
 */
export function lastLayer(model: Graph, output = model.outputs[0]?.name): LastLayer | undefined {
  const makers = new Map(model.nodes.flatMap((node) => node.outputs.map((o) => [o, node] as const)));
  const given = new Set(model.inputs.map(({ name }) => name));
  const parameters: string[] = [];
  for (let at = output; at !== undefined;) {
    const node = makers.get(at);
    if (node === undefined) return undefined;
    const own = node.inputs.filter((name) => isParameter(model, name));
    parameters.push(...own);
    const [next, ...others] = node.inputs.filter((name) => makers.has(name));
    if (own.some((name) => model.initializers.get(name)!.shape.length >= 2)) {
      const features = next ?? node.inputs.find((name) => given.has(name));
      return features === undefined ? undefined : { parameters, features };
    }
    at = others.length === 0 ? next : undefined;
  }
  return undefined;
}
