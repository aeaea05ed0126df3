import type { DType } from '../tensor/tensor.ts';
import { type Graph, type Node, latestOpset } from './ir.ts';
import { legacyBelow, modernised } from './legacy.ts';
import { dtypeOf } from './onnx.ts';
import { uniqueNames } from './order.ts';
import { type UpgradeContext, changes, neededBy } from './upgrades.ts';

/**
 * The same computation in terms of {@link latestOpset}, so that everything after it knows one version of each operator.
 *
 * From opset 22 on, operators only accepted more element types and new ones came; a graph of those versions is
 * marked {@link latestOpset} as well, unless it uses one of the new operators: then it keeps the version it needs.
 *
 * @throws GhostgradError where an old form of an operator has no counterpart
 */
export function upgrade(graph: Graph): Graph {
  const opset = Math.max(latestOpset, ...graph.nodes.map(neededBy));
  if (graph.opset >= latestOpset) return { ...graph, opset };
  const initializers = new Map(graph.initializers);
  const literals = new Set(graph.literals);
  const nodes: Node[] = [];
  const uniqueValue = uniqueNames([
    ...graph.inputs.map(({ name }) => name), ...initializers.keys(), ...graph.nodes.flatMap((node) => node.outputs),
  ]);
  const uniqueNode = uniqueNames(graph.nodes.map(({ name }) => name));
  const used = new Set([...graph.nodes.flatMap((node) => node.inputs), ...graph.outputs.map(({ name }) => name)]);
  const facts = knownFacts(graph);

  const contextFor = (node: Node): UpgradeContext => ({
    opset: graph.opset,
    constant: (hint, value) => {
      const name = uniqueValue(`${node.name}/${hint}`);
      initializers.set(name, value);
      literals.add(name);
      return name;
    },
    name: uniqueValue,
    op: (op, inputs, attributes = {}) => {
      const output = uniqueValue(`${node.name}/${op}`);
      nodes.push({ op, domain: '', name: uniqueNode(`${node.name}/${op}`), inputs, outputs: [output], attributes });
      return output;
    },
    tensorOf: (value) => initializers.get(value),
    rankOf: (value) => facts.get(value)?.rank,
    dtypeOf: (value) => facts.get(value)?.dtype ?? 'float32',
    isUsed: (value) => value !== '' && used.has(value),
  });
  for (const original of graph.nodes) {
    const node = graph.opset < legacyBelow ? modernised(original, contextFor(original)) : original;
    const change = node.domain === '' && Object.hasOwn(changes, node.op) ? changes[node.op] : undefined;
    const current =
      change !== undefined && graph.opset < change.below ? change.rewrite(node, contextFor(node)) : [node];
    nodes.push(...current.map((n) => (n.name === node.name ? n : { ...n, name: uniqueNode(n.name) })));
  }
  return { ...graph, opset, initializers, literals, nodes };
}

interface Facts {
  readonly dtype: DType;
  readonly rank: number | undefined;
}

const keepsRank = new Set([
  'Relu',
  'LeakyRelu',
  'Elu',
  'Selu',
  'PRelu',
  'Sigmoid',
  'Tanh',
  'Softplus',
  'Softmax',
  'LogSoftmax',
  'Hardmax',
  'Clip',
  'Abs',
  'Neg',
  'Exp',
  'Log',
  'Sqrt',
  'Erf',
  'Identity',
  'Cast',
  'Dropout',
  'BatchNormalization',
  'InstanceNormalization',
  'LRN',
  'Conv',
  'ConvTranspose',
  'MaxPool',
  'AveragePool',
  'GlobalAveragePool',
  'GlobalMaxPool',
  'Pad',
  'Slice',
  'Transpose',
  'Concat',
  'Upsample',
  'Resize',
]);
const broadcasts = new Set(['Add', 'Sub', 'Mul', 'Div', 'Pow', 'Sum', 'Max', 'Min', 'Mean', 'MatMul']);
const isMatrix = new Set(['Gemm', 'Flatten']);
const makesInt64 = new Set(['Shape', 'Size', 'ArgMax', 'ArgMin', 'NonZero']);

/** Element types and ranks as far as they follow from declarations and common operators. */
function knownFacts(graph: Graph): ReadonlyMap<string, Facts> {
  const facts = new Map<string, Facts>();
  for (const { name, dtype, shape } of graph.inputs) facts.set(name, { dtype, rank: shape?.length });
  for (const [name, { dtype, shape }] of graph.initializers) facts.set(name, { dtype, rank: shape.length });
  const declared = new Map(graph.outputs.map((output) => [output.name, output]));
  for (const node of graph.nodes) {
    const rank = rankAfter(node, facts);
    const dtype = dtypeAfter(node, facts);
    for (const output of node.outputs) {
      facts.set(output, {
        dtype: declared.get(output)?.dtype ?? dtype,
        rank: declared.get(output)?.shape?.length ?? rank,
      });
    }
  }
  return facts;
}

function rankAfter({ op, inputs }: Node, facts: ReadonlyMap<string, Facts>): number | undefined {
  if (isMatrix.has(op)) return 2;
  if (keepsRank.has(op)) return facts.get(inputs[0] ?? '')?.rank;
  if (!broadcasts.has(op)) return undefined;
  const ranks = inputs.map((input) => facts.get(input)?.rank ?? NaN);
  // A product with a vector loses an axis.
  const rank = op === 'MatMul' && Math.min(...ranks) < 2 ? NaN : Math.max(...ranks);
  return Number.isNaN(rank) ? undefined : rank;
}

function dtypeAfter(node: Node, facts: ReadonlyMap<string, Facts>): DType {
  if (makesInt64.has(node.op)) return 'int64';
  const to = node.op === 'Cast' ? node.attributes['to'] : undefined;
  // Before opset 6 the type was told by its name; the rewriting of those forms knows them.
  if (node.op === 'Cast') return (to?.type === 'int' ? dtypeOf(to.value) : undefined) ?? 'float32';
  const fill = node.op === 'ConstantOfShape' ? node.attributes['value'] : undefined;
  if (node.op === 'ConstantOfShape') return fill?.type === 'tensor' ? fill.value.dtype : 'float32';
  return facts.get(node.inputs.find((input) => input !== '') ?? '')?.dtype ?? 'float32';
}
