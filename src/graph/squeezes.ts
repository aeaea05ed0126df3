import { create } from '@bufbuild/protobuf';
import { type GraphProto, type NodeProto, NodeProtoSchema } from 'onnx-buf';
import { type Tensor, toNumbers } from '../tensor/tensor.ts';
import { uniqueNames } from './order.ts';

/**
 * PyTorch exports the squeezing of an axis whose size it does not know as a question: If the size is 1, Squeeze, else
 * Identity. Once shapes are fixed there is nothing to ask, and a Squeeze alone is the same or, where the size is not 1, an
 * error of its shape rule, as a rank that hangs on sizes would be later on.
 *
 * @param constants values of initializers and of Constant nodes
 * @param constantOf the value of a Constant node of a branch
 * @returns the nodes with such an If replaced, and the constants that these need
 */
export function plainSqueezes(
  nodes: readonly NodeProto[], constants: ReadonlyMap<string, Tensor>, constantOf: (node: NodeProto) => Tensor,
): { readonly nodes: readonly NodeProto[]; readonly added: ReadonlyMap<string, Tensor> } {
  const added = new Map<string, Tensor>();
  if (!nodes.some(isConditional)) return { nodes, added };
  const makers = new Map(nodes.flatMap((node) => node.output.map((value) => [value, node] as const)));
  const unique = uniqueNames([...makers.keys(), ...constants.keys(), ...nodes.flatMap(({ input }) => input)]);

  const plain = (node: NodeProto): NodeProto => {
    if (!isConditional(node)) return node;
    const [then, otherwise] = [branch(node, 'then_branch'), branch(node, 'else_branch')];
    const [squeeze, same] = [onlyNode(then), onlyNode(otherwise)];
    if (then === undefined || squeeze?.opType !== 'Squeeze' || same?.opType !== 'Identity') return node;
    const [x = '', axesName = ''] = squeeze.input;
    const inner = then.node.find(({ opType, output }) => opType === 'Constant' && output[0] === axesName);
    const axes = inner === undefined ? constants.get(axesName) : constantOf(inner);
    const [axis, ...more] = axes === undefined ? squeeze.attribute.find(({ name }) => name === 'axes')?.ints.map(Number) ?? [] : toNumbers(axes);
    if (same.input[0] !== x || axis === undefined || more.length > 0 || !asksForOne(node.input[0] ?? '', x, axis, makers, constants)) return node;
    const input = axes === undefined ? [x] : [x, unique(`${node.output[0] ?? x}/axes`)];
    if (axes !== undefined) added.set(input[1]!, axes);
    return create(NodeProtoSchema, { opType: 'Squeeze', name: node.name, input, output: node.output, attribute: squeeze.attribute });
  };
  return { nodes: nodes.map(plain), added };
}

const isConditional = ({ opType, domain }: NodeProto): boolean => opType === 'If' && (domain === '' || domain === 'ai.onnx');

const branch = (node: NodeProto, name: string): GraphProto | undefined => node.attribute.find((a) => a.name === name)?.g;

/** The node that makes all that a branch gives out, where there is one beside constants. */
function onlyNode(graph: GraphProto | undefined): NodeProto | undefined {
  const [node, ...more] = graph?.node.filter(({ opType }) => opType !== 'Constant') ?? [];
  const [output, ...others] = graph?.output ?? [];
  return more.length === 0 && others.length === 0 && node?.output[0] === output?.name ? node : undefined;
}

/** Whether a value is the answer to: is this axis of x of size 1? */
function asksForOne(
  value: string, x: string, axis: number, makers: ReadonlyMap<string, NodeProto>, constants: ReadonlyMap<string, Tensor>,
): boolean {
  const made = (name: string, op: string): NodeProto | undefined => {
    const node = makers.get(name);
    return node?.opType === op ? node : undefined;
  };
  const is = (name: string | undefined, n: number): boolean => {
    const t = constants.get(name ?? '');
    return t?.data.length === 1 && toNumbers(t)[0] === n;
  };
  const equal = made(value, 'Equal');
  return equal !== undefined && [0, 1].some((i) => {
    const size = made(equal.input[i] ?? '', 'Gather');
    return is(equal.input[1 - i], 1) && is(size?.input[1], axis) && made(size?.input[0] ?? '', 'Shape')?.input[0] === x;
  });
}
