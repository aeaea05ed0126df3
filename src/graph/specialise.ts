import { GhostgradError } from '../errors.ts';
import { type Shape, type Tensor, type TensorType, isFloat, sizeOf } from '../tensor/tensor.ts';
import {
  type Dimension,
  type Graph,
  type Node,
  type OperatorSemantics,
  type TypedGraph,
  type ValueInfo,
  showNode,
  showShape,
} from './ir.ts';
import { prune } from './prune.ts';

/** Folded values above this many elements stay computations: they would only make the graph large. */
const maximumFolded = 1_000_000;
/** So do others after this many elements in total: a small file must not fill the memory. */
const maximumFoldedInTotal = 8_000_000;
/** Values up to this many elements, as the arithmetic of shapes makes them, are always folded. */
const alwaysFolded = 64;
/** More elements than any memory holds, in one value. Below it products of sizes are exact. */
const maximumElements = 2 ** 42;

/**
 * The graph for inputs of given shapes: the type of every value is inferred, and whatever can be computed from
 * constants is (the arithmetic of shapes, above all). Folded values become literals. What hangs on a parameter, a
 * floating-point initializer that is no literal and no mere setting, is never folded, so that it stays trainable. Nodes that became
 * constants or lead to no output are dropped.
 *
 * @param shapes for each input by name; one whose dimensions are all fixed, or follow from symbolic dimensions of
 * the inputs given, may be left out
 * @param like the same graph for other shapes: what is computed there is computed here too, and what is folded there
 * is folded here, whatever its size, so that both have the same nodes
 * @throws GhostgradError when shapes contradict the declared ones or one another, or the operators' shape rules do
 */
export function specialise(
  graph: Graph,
  shapes: Readonly<Record<string, Shape>>,
  semantics: OperatorSemantics,
  like?: TypedGraph,
): TypedGraph {
  const { graph: typed, failures } = specialisePart(graph, shapes, semantics, like);
  const [failure] = failures;
  if (failure !== undefined) throw failure.error;
  const outputs = graph.outputs.map(({ name, ...declared }) => ({ name, ...(typed.types.get(name) ?? declared) }));
  return prune({ ...typed, outputs });
}

/** As much of a graph as {@link specialisePart} could specialise. */
export interface SpecialisedPart {
  /** The nodes whose types are known. Its outputs are the values that the graph outputs or that the other nodes use. */
  readonly graph: TypedGraph;
  /** The first nodes whose types cannot be inferred, and why; nodes that depend on them are not judged. */
  readonly failures: readonly { readonly node: Node; readonly error: unknown }[];
}

/**
 * {@link specialise} that goes on where the types of a node cannot be inferred, so that everything that stands in the
 * way can be told at once.
 *
 * @throws GhostgradError when the shapes of inputs contradict the declared ones or one another
 */
export function specialisePart(
  graph: Graph,
  shapes: Readonly<Record<string, Shape>>,
  semantics: OperatorSemantics,
  like?: TypedGraph,
): SpecialisedPart {
  const computed = like && new Set(like.nodes.flatMap(({ outputs }) => outputs));
  const inputs = concreteInputs(graph, shapes);
  const types = new Map<string, TensorType>(inputs.map(({ name, dtype, shape }) => [name, { dtype, shape }]));
  const initializers = new Map(graph.initializers);
  const literals = new Set(graph.literals);
  for (const [name, { dtype, shape }] of initializers) types.set(name, { dtype, shape });
  const settings = settingsOf(graph, semantics);
  const foldable = (name: string): Tensor | undefined => {
    const value = initializers.get(name);
    return value && (literals.has(name) || settings.has(name) || !isFloat(value.dtype)) ? value : undefined;
  };

  const nodes: Node[] = [];
  const failures: { node: Node; error: unknown }[] = [];
  const frontier = new Set<string>();
  let foldedInTotal = 0;
  // What leads to no output need not be supported.
  for (const node of prune(graph).nodes) {
    const operands = node.inputs.map((name) => (name === '' ? undefined : types.get(name)));
    let inferred: readonly TensorType[];
    try {
      const isJudged = node.inputs.every((name) => name === '' || types.has(name));
      inferred = isJudged ? outputTypes(node, operands, node.inputs.map((name) => initializers.get(name)), semantics) : [];
    } catch (error) {
      failures.push({ node, error });
      inferred = [];
    }
    if (inferred.length === 0) {
      node.inputs.forEach((name) => frontier.add(name));
      continue;
    }
    node.outputs.forEach((name, i) => {
      if (name !== '') types.set(name, inferred[i]!);
    });
    const elements = Math.max(0, ...inferred.map(({ shape }) => sizeOf(shape)));
    const modest = computed !== undefined ? !node.outputs.some((name) => computed.has(name))
      : elements <= alwaysFolded || (elements <= maximumFolded && foldedInTotal + elements <= maximumFoldedInTotal);
    const folded = modest ? semantics.fold(node, operands, node.inputs.map(foldable)) : undefined;
    if (folded === undefined) {
      nodes.push(node);
      continue;
    }
    node.outputs.forEach((name, i) => {
      const value = folded[i];
      if (name === '' || value === undefined) return;
      initializers.set(name, value);
      literals.add(name);
      foldedInTotal += value.data.length;
    });
  }

  graph.outputs.forEach(({ name }) => frontier.add(name));
  const outputs = [...frontier].flatMap((name) => {
    const type = types.get(name);
    return type === undefined ? [] : [{ name, ...type }];
  });
  return { graph: { ...graph, inputs, outputs, nodes, initializers, literals, types }, failures };
}

function outputTypes(
  node: Node,
  operands: readonly (TensorType | undefined)[],
  constants: readonly (Tensor | undefined)[],
  semantics: OperatorSemantics,
): readonly TensorType[] {
  const inferred = semantics.infer(node, operands, constants);
  inferred.forEach((type) => { requirePossible(type, showNode(node)); });
  const extra = node.outputs.find((name, i) => name !== '' && inferred[i] === undefined);
  if (extra === undefined) return inferred;
  throw new GhostgradError({ what: `${showNode(node)} has more outputs than its operator`, found: `"${extra}"` });
}

/** Initializers that no node takes in a place where a parameter could stand. */
function settingsOf({ initializers, nodes }: Graph, { untrained = () => [] }: OperatorSemantics): ReadonlySet<string> {
  const settings = new Set<string>();
  const others = new Set<string>();
  for (const node of nodes) {
    const places = untrained(node);
    node.inputs.forEach((name, i) => (places.includes(i) ? settings : others).add(name));
  }
  return new Set([...settings].filter((name) => initializers.has(name) && !others.has(name)));
}

/** Throws GhostgradError for a size that is no size, or that no memory holds. */
function requirePossible({ shape }: TensorType, where: string): void {
  if (shape.every((n) => Number.isSafeInteger(n) && n >= 0) && sizeOf(shape) <= maximumElements) return;
  throw new GhostgradError({
    what: 'a value of an impossible size', where, found: showShape(shape),
    expected: `whole numbers of at least 0, and at most ${maximumElements} elements`,
    fix: 'check the sizes that the model declares and the shapes given for its inputs',
  });
}

type ConcreteInput = ValueInfo & TensorType;

function concreteInputs(graph: Graph, shapes: Readonly<Record<string, Shape>>): readonly ConcreteInput[] {
  const given = new Map(Object.entries(shapes));
  const unknown = [...given.keys()].find((name) => !graph.inputs.some((input) => input.name === name));
  if (unknown !== undefined) {
    throw new GhostgradError({
      what: 'a shape for an input that the model does not have', where: `graph "${graph.name}"`, found: `"${unknown}"`,
      expected: `one of ${graph.inputs.map(({ name }) => `"${name}"`).join(', ')}`,
    });
  }
  const symbols = new Map<string, { readonly size: number; readonly input: string }>();
  for (const input of graph.inputs) {
    const shape = given.get(input.name);
    if (shape !== undefined) bindSymbols(input, shape, symbols);
  }
  return graph.inputs.map((input) => {
    const shape =
      given.get(input.name) ?? input.shape?.map((d) => (typeof d === 'string' ? (symbols.get(d)?.size ?? d) : d));
    if (shape === undefined || !isConcrete(shape)) {
      const example = (input.shape ?? [1]).map((d) => (typeof d === 'number' ? d : 1));
      throw new GhostgradError({
        what: 'an input without a shape',
        where: `input "${input.name}"`,
        found: input.shape === null ? 'an unknown rank' : showShape(shape ?? []),
        expected: 'a size for every dimension',
        fix: `give its shape, e.g. ${input.name}=${example.join()}`,
      });
    }
    requirePossible({ dtype: input.dtype, shape }, `input "${input.name}"`);
    return { name: input.name, dtype: input.dtype, shape };
  });
}

const isConcrete = (shape: readonly Dimension[]): shape is Shape => shape.every((d) => typeof d === 'number');

function bindSymbols(
  { name, shape: declared }: ValueInfo,
  shape: Shape,
  symbols: Map<string, { readonly size: number; readonly input: string }>,
): void {
  const refuse = (found: string, expected: string): never => {
    throw new GhostgradError({ what: 'wrong input shape', where: `input "${name}"`, found, expected });
  };
  if (!shape.every((n) => Number.isSafeInteger(n) && n >= 0)) refuse(showShape(shape), 'whole numbers of at least 0');
  if (declared === null) return;
  if (declared.length !== shape.length) {
    refuse(`${showShape(shape)} (rank ${shape.length})`, `${showShape(declared)} (rank ${declared.length})`);
  }
  declared.forEach((d, axis) => {
    const size = shape[axis] ?? 0;
    if (typeof d === 'number' && d !== size) {
      refuse(`${showShape(shape)} with ${size} in axis ${axis}`, showShape(declared));
    }
    if (typeof d !== 'string') return;
    const bound = symbols.get(d);
    if (bound !== undefined && bound.size !== size) {
      refuse(
        `${showShape(shape)} with ${d} = ${size} in axis ${axis}`,
        `${d} = ${bound.size}, as in input "${bound.input}"`,
      );
    }
    symbols.set(d, bound ?? { size, input: name });
  });
}
