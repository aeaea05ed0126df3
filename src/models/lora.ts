import { GhostgradError } from '../errors.ts';
import { type Graph, type Node, intAttribute, intsAttribute } from '../graph/ir.ts';
import { uniqueNames } from '../graph/order.ts';
import { initialDraws } from '../random/initial.ts';
import { matching } from '../suggest.ts';
import { type FloatTensor, type Shape, float32, sizeOf, zeros } from '../tensor/tensor.ts';

export interface LoraOptions {
  /** r: the inner size of an adapter; default 8. */
  readonly rank?: number | undefined;
  /** α: the adapter's part is scaled by α/r; default 16. */
  readonly alpha?: number | undefined;
  /** Names, or patterns of names, of the weights that get an adapter; default: all that can have one. */
  readonly targets?: readonly string[] | undefined;
  /** Weights that get none whatever the targets say, such as a head that is trained itself. */
  readonly except?: readonly string[] | undefined;
}

/** An adapter of one weight. */
export interface Adapter {
  readonly weight: string;
  /** Parameters: `a` draws r numbers from the input, `b` spreads them over the output; `b` begins at zero. */
  readonly a: string;
  readonly b: string;
  /** α/r */
  readonly scale: number;
  /** Whether `a` is stored as [r, inputs, …] and `b` as [outputs, r, …], as PEFT does, or the other way round. */
  readonly outputsFirst: boolean;
  /** The weight with the adapter's part added, or undefined where it is stored in a form that cannot hold it. */
  readonly merged: ((weight: FloatTensor, a: FloatTensor, b: FloatTensor) => FloatTensor) | undefined;
}

/** How an operator's weight gets an adapter: one entry for each operator. */
interface Site {
  /** The place of the weight among the inputs. */
  readonly place: number;
  readonly outputsFirst: (node: Node) => boolean;
  /** Shapes of `a` and `b`, and how many inputs an element of `a`'s product has; undefined for a form without adapters. */
  readonly shapes: (node: Node, weight: Shape, rank: number) => { readonly a: Shape; readonly b: Shape; readonly fan: number } | undefined;
  /** Nodes from the operator's data to `out`, through `inner`. */
  readonly branch: (names: { readonly x: string; readonly a: string; readonly b: string; readonly inner: string; readonly out: string; readonly node: Node }) => readonly BareNode[];
  readonly merged?: (node: Node, scale: number) => Adapter['merged'];
}

type BareNode = Pick<Node, 'op' | 'inputs' | 'outputs'> & Partial<Pick<Node, 'attributes'>>;

/** W + s·A·B for matrices stored row by row; `flip` where W is stored as [outputs, inputs], with A [r, inputs], B [outputs, r]. */
const mergedMatrix = (flip: boolean) => (scale: number): Adapter['merged'] => (w, a, b) => {
  const [rows, columns] = w.shape as [number, number];
  const [left, right] = flip ? [b.data, a.data] : [a.data, b.data];
  const rank = left.length / rows;
  return mapped(w, (i) => {
    const [row, column] = [Math.floor(i / columns), i % columns];
    let sum = 0;
    for (let r = 0; r < rank; r++) sum += left[row * rank + r]! * right[r * columns + column]!;
    return w.data[i]! + scale * sum;
  });
};

const mapped = (w: FloatTensor, value: (i: number) => number): FloatTensor => {
  const data = new Float32Array(w.data.length);
  for (let i = 0; i < data.length; i++) data[i] = value(i);
  return { ...w, data };
};

/** For a weight that its node reads transposed. */
const throughTranspose = (merged: NonNullable<Adapter['merged']>): Adapter['merged'] => (w, a, b) => transposed(merged(transposed(w), a, b));

const isTransposed = (node: Node, name: string): boolean => intAttribute(node, name, 0) !== 0;

const sites: Readonly<Record<string, Site>> = {
  'MatMul': {
    place: 1,
    outputsFirst: () => false,
    shapes: (_, weight, rank) =>
      weight.length === 2 ? { a: [weight[0]!, rank], b: [rank, weight[1]!], fan: weight[0]! } : undefined,
    branch: ({ x, a, b, inner, out }) => [
      { op: 'MatMul', inputs: [x, a], outputs: [inner] }, { op: 'MatMul', inputs: [inner, b], outputs: [out] },
    ],
    merged: (_, scale) => mergedMatrix(false)(scale),
  },
  'Gemm': {
    place: 1,
    outputsFirst: (node) => isTransposed(node, 'transB'),
    shapes: (node, weight, rank) => {
      if (isTransposed(node, 'transA')) return undefined;
      const [inputs, outputs] = isTransposed(node, 'transB') ? [weight[1]!, weight[0]!] : [weight[0]!, weight[1]!];
      return isTransposed(node, 'transB') ? { a: [rank, inputs], b: [outputs, rank], fan: inputs } : { a: [inputs, rank], b: [rank, outputs], fan: inputs };
    },
    branch: ({ x, a, b, inner, out, node }) => {
      const { alpha, transB } = node.attributes;
      const kept = transB === undefined ? {} : { transB };
      return [
        { op: 'Gemm', inputs: [x, a], outputs: [inner], attributes: { ...kept, ...(alpha && { alpha }) } },
        { op: 'Gemm', inputs: [inner, b], outputs: [out], attributes: kept },
      ];
    },
    merged: (node, scale) => mergedMatrix(isTransposed(node, 'transB'))(scale),
  },
  'Conv': {
    place: 1,
    outputsFirst: () => true,
    shapes: (node, weight, rank) => intAttribute(node, 'group', 1) !== 1 ? undefined : {
      a: [rank, ...weight.slice(1)], b: [weight[0]!, rank, ...weight.slice(2).map(() => 1)], fan: sizeOf(weight.slice(1)),
    },
    branch: ({ x, a, b, inner, out, node }) => [
      { op: 'Conv', inputs: [x, a], outputs: [inner], attributes: node.attributes },
      { op: 'Conv', inputs: [inner, b], outputs: [out] },
    ],
    // As matrices: W [outputs, channels · kernel].
    merged: (_, scale) => (w, a, b) => {
      const flat = (t: FloatTensor): FloatTensor => ({ ...t, shape: [t.shape[0]!, sizeOf(t.shape.slice(1))] });
      return { ...mergedMatrix(true)(scale)!(flat(w), flat(a), flat(b)), shape: w.shape };
    },
  },
  // Weights of a few bits stay as they are: the adapter's part cannot be added to them.
  'com.microsoft:MatMulNBits': {
    place: 1,
    outputsFirst: () => false,
    shapes: (node, _, rank) => {
      const [inputs, outputs] = [intAttribute(node, 'K', 0), intAttribute(node, 'N', 0)];
      return { a: [inputs, rank], b: [rank, outputs], fan: inputs };
    },
    branch: (names) => sites['MatMul']!.branch(names),
  },
};

const siteOf = ({ op, domain }: Pick<Node, 'op' | 'domain'>): Site | undefined => {
  const key = domain === '' || domain === 'ai.onnx' ? op : `${domain}:${op}`;
  return Object.hasOwn(sites, key) ? sites[key] : undefined;
};

/**
 * The model with low-rank adapters beside weights, which stay as they are: y = x·W + α/r·(x·A)·B (Hu et al., ICLR 2022). A is
 * drawn from U(±1/√inputs), B is zero, so that the model computes at first what it did. A weight of several nodes has one
 * adapter; one that is also used otherwise (looked up, say) has none. A matrix may reach its node through a Transpose, and be
 * merged through it.
 *
 * @param seed of the draws, which are public; default: the operating system's randomness
 * @throws GhostgradError when a target matches no weight that can have an adapter
 */
export function withLora(
  model: Graph, { rank = 8, alpha = 16, targets = ['*'], except = [] }: LoraOptions, seed?: number | string,
): { readonly model: Graph; readonly adapters: readonly Adapter[] } {
  const adaptable = new Map([...weightsOf(model)].filter(([name]) => !except.includes(name)));
  const chosen = new Set(targets.flatMap((target) => matching(target, [...adaptable.keys()], 'trainable.lora.targets')));
  if (chosen.size === 0) {
    throw new GhostgradError({
      what: 'the model has no weight that an adapter could be put on', where: 'trainable.lora', expected: `a weight of ${Object.keys(sites).join(', ')}`,
    });
  }
  const unique = uniqueNames([
    ...model.initializers.keys(), ...model.inputs.map(({ name }) => name), ...model.nodes.flatMap((node) => [node.name, ...node.outputs]),
  ]);
  const draws = initialDraws(seed);
  const makers = makersOf(model);
  const initializers = new Map(model.initializers);
  const literals = new Set(model.literals);
  const scale = alpha / rank;
  const factor = unique('lora.scale');
  initializers.set(factor, float32([scale], []));
  literals.add(factor);

  const adapters = new Map([...chosen].map((weight) => {
    const { node, held } = adaptable.get(weight)!;
    const { shapes, merged, outputsFirst } = siteOf(node)!;
    const [a, b] = [unique(`${weight}.lora_A`), unique(`${weight}.lora_B`)];
    const size = shapes(node, held.shape, rank)!;
    const add = model.initializers.get(weight)?.dtype === 'float32' ? merged?.(node, scale) : undefined;
    initializers.set(a, draws.uniform(a, size.a, 1 / Math.sqrt(size.fan)));
    initializers.set(b, zeros('float32', size.b));
    return [weight, { weight, a, b, scale, outputsFirst: outputsFirst(node), merged: add && held.isFlipped ? throughTranspose(add) : add }];
  }));

  const nodes = model.nodes.flatMap((node): readonly Node[] => {
    const site = siteOf(node);
    const adapter = site && adapters.get(heldBy(model, makers, node.inputs[site.place] ?? '')?.weight ?? '');
    const [output] = node.outputs;
    if (site === undefined || adapter === undefined || output === undefined) return [node];
    const name = (part: string): string => unique(`${node.name}.lora.${part}`);
    const [base, inner, scaled, out] = [name('base'), name('inner'), name('scaled'), name('out')];
    const [first, ...rest] = site.branch({ x: node.inputs[0]!, a: adapter.a, b: adapter.b, inner, out, node });
    const branch: readonly BareNode[] = [
      first!, { op: 'Mul', inputs: [inner, factor], outputs: [scaled] },
      ...rest.map((next) => ({ ...next, inputs: next.inputs.map((v) => (v === inner ? scaled : v)) })),
      { op: 'Add', inputs: [base, out], outputs: [output] },
    ];
    return [
      { ...node, outputs: [base, ...node.outputs.slice(1)] },
      ...branch.map((bare) => ({ domain: '', attributes: {}, ...bare, name: name(bare.op.toLowerCase()) })),
    ];
  });
  return { model: { ...model, nodes, initializers, literals }, adapters: [...adapters.values()] };
}

/** Names of the weights that adapters can be put beside. */
export const adaptableWeights = (model: Graph): readonly string[] => [...weightsOf(model).keys()];

/** Names of the adapters' first factors in a model that has them. */
export const adapterNames = ({ initializers }: Graph): readonly string[] => [...initializers.keys()].filter((name) => name.endsWith('.lora_A'));

/** Makers of values by name. */
const makersOf = ({ nodes }: Graph): ReadonlyMap<string, Node> =>
  new Map(nodes.flatMap((node) => node.outputs.map((output) => [output, node] as const)));

/** A weight as a node reads it. */
interface Held {
  readonly weight: string;
  readonly shape: Shape;
  /** Whether a Transpose is between the weight and the node. */
  readonly isFlipped: boolean;
}

/** Weights that can have an adapter, with a node each: what meets data in the places of {@link sites} alone. */
function weightsOf(model: Graph): ReadonlyMap<string, { readonly node: Node; readonly held: Held }> {
  const makers = makersOf(model);
  const found = new Map<string, { readonly node: Node; readonly held: Held }>();
  const elsewhere = new Set(model.outputs.map(({ name }) => heldBy(model, makers, name)?.weight));
  for (const node of model.nodes) {
    // Who reads the transposed matrix is looked at instead.
    if (heldBy(model, makers, node.outputs[0] ?? '')?.isFlipped) continue;
    const site = siteOf(node);
    node.inputs.forEach((name, place) => {
      const held = heldBy(model, makers, name);
      if (held === undefined) return;
      const first = found.get(held.weight);
      const fits = site !== undefined && place === site.place && site.shapes(node, held.shape, 1) !== undefined
        // Adapters of other attributes would be other ones.
        && (first === undefined || (first.node.op === node.op && first.held.isFlipped === held.isFlipped && sameForm(first.node, node)));
      if (!fits) elsewhere.add(held.weight);
      else if (first === undefined) found.set(held.weight, { node, held });
    });
  }
  return new Map([...found].filter(([name]) => !elsewhere.has(name)));
}

const sameForm = (one: Node, other: Node): boolean =>
  isTransposed(one, 'transB') === isTransposed(other, 'transB') &&
  (intsAttribute(one, 'kernel_shape', undefined) ?? []).join() === (intsAttribute(other, 'kernel_shape', undefined) ?? []).join();

/** What a value is if it is a weight: floats that are no constants of the program, packed bits, or what is computed from quantised numbers alone. */
function heldBy({ initializers, literals }: Graph, makers: ReadonlyMap<string, Node>, name: string): Held | undefined {
  const ofFloats = (value: string): boolean => initializers.get(value)?.dtype === 'float32' && literals?.has(value) !== true;
  const as = (weight: string, source = weight): Held => ({ weight, shape: initializers.get(source)!.shape, isFlipped: false });
  if (ofFloats(name) || initializers.get(name)?.dtype === 'uint8') return as(name);
  const maker = makers.get(name);
  const [source = ''] = maker?.inputs ?? [];
  if (maker?.op === 'DequantizeLinear' && initializers.has(source)) return as(name, source);
  if (maker?.op !== 'Transpose' || !ofFloats(source) || initializers.get(source)!.shape.length !== 2) return undefined;
  // The default order is the reverse one.
  return intsAttribute(maker, 'perm', [1, 0]).join() === '1,0' ? { ...as(source), shape: initializers.get(source)!.shape.toReversed(), isFlipped: true } : undefined;
}

/**
 * The original model with the adapters' parts added to its weights, and other parameters as trained: what computes the same
 * with no adapter in it. Where a weight is stored in few bits its adapter stays, so all do.
 *
 * @param trained the model with adapters, with the values that training gave it
 */
export function mergedLora(original: Graph, trained: Graph, adapters: readonly Adapter[]): Graph {
  if (adapters.some(({ merged }) => merged === undefined)) return trained;
  const value = (name: string): FloatTensor => trained.initializers.get(name) as FloatTensor;
  const weights = new Map(adapters.map(({ weight, a, b, merged }) => [weight, merged!(value(weight), value(a), value(b))]));
  const initializers = new Map([...original.initializers.keys()].map((name) =>
    [name, weights.get(name) ?? trained.initializers.get(name) ?? original.initializers.get(name)!]));
  return { ...original, initializers, metadata: trained.metadata };
}

/** Adapters alone, to be saved. */
export interface SavedAdapters {
  readonly tensors: ReadonlyMap<string, FloatTensor>;
  /** What their product is scaled by is α/r. */
  readonly metadata: Readonly<Record<'format' | 'r' | 'lora_alpha', string>>;
}

/** The trained adapters alone, under the names and in the layout of PEFT: `lora_A.weight` [r, inputs], `lora_B.weight` [outputs, r]. */
export function savedAdapters(trained: Graph, adapters: readonly Adapter[], { rank, alpha }: { readonly rank: number; readonly alpha: number }): SavedAdapters {
  const tensors = new Map(adapters.flatMap(({ weight, a, b, outputsFirst }) => {
    const stem = `base_model.model.${weight.replace(/\.weight$/, '')}`;
    const [first, second] = [a, b].map((name) => trained.initializers.get(name) as FloatTensor) as [FloatTensor, FloatTensor];
    const at = (t: FloatTensor): FloatTensor => (outputsFirst ? t : transposed(t));
    return [[`${stem}.lora_A.weight`, at(first)], [`${stem}.lora_B.weight`, at(second)]] as const;
  }));
  return { tensors, metadata: { format: 'pt', r: String(rank), lora_alpha: String(alpha) } };
}

function transposed({ dtype, shape, data }: FloatTensor): FloatTensor {
  const [rows, columns] = shape as [number, number];
  const out = new Float32Array(data.length);
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) out[j * rows + i] = data[i * columns + j]!;
  return { dtype, shape: [columns, rows], data: out };
}
