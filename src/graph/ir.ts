import { GhostgradError } from '../errors.ts';
import type { DType, Shape, Tensor, TensorType } from '../tensor/tensor.ts';

/** An attribute of a node, tagged because ONNX tells 1 (int) from 1.0 (float). */
export type Attribute =
  | { readonly type: 'int'; readonly value: number }
  | { readonly type: 'float'; readonly value: number }
  | { readonly type: 'string'; readonly value: string }
  | { readonly type: 'tensor'; readonly value: Tensor }
  | { readonly type: 'ints'; readonly value: readonly number[] }
  | { readonly type: 'floats'; readonly value: readonly number[] }
  | { readonly type: 'strings'; readonly value: readonly string[] }
  /** A subgraph or another type that no differentiable operator here needs; kept so that messages can name it. */
  | { readonly type: 'other'; readonly value: string };

export type Attributes = Readonly<Record<string, Attribute>>;

/** Shorthands for building attributes. */
export const int = (value: number): Attribute => ({ type: 'int', value });
export const float = (value: number): Attribute => ({ type: 'float', value });
export const string = (value: string): Attribute => ({ type: 'string', value });
export const ints = (value: readonly number[]): Attribute => ({ type: 'ints', value });

/** One operation. Values are named by strings; `''` is an omitted optional input or output. */
export interface Node {
  /** The operator, e.g. `Conv`. */
  readonly op: string;
  /** `''` for the standard set, `com.microsoft` for ONNX Runtime's own. */
  readonly domain: string;
  /** Unique within a graph after import. */
  readonly name: string;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly attributes: Attributes;
}

/** A dimension as a file declares it: a number, a symbolic name, or unknown. */
export type Dimension = number | string | null;

/** A graph input or output as a file declares it; `shape` is null when the rank is unknown. */
export interface ValueInfo {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly Dimension[] | null;
}

/**
 * An ONNX graph: nodes in topological order, each value assigned once. Never changed in place:
 * a pass takes a graph and returns a graph.
 */
export interface Graph {
  readonly name: string;
  /** Version of the standard operator set; the importer upgrades to {@link latestOpset}. */
  readonly opset: number;
  readonly inputs: readonly ValueInfo[];
  readonly outputs: readonly ValueInfo[];
  readonly initializers: ReadonlyMap<string, Tensor>;
  /**
   * Names of the initializers that are constants of the program and never parameters: values of Constant nodes and
   * whatever a pass made or folded. The other floating-point initializers are parameters. Default: none.
   */
  readonly literals?: ReadonlySet<string>;
  readonly nodes: readonly Node[];
  /** Versions of the operator sets other than the standard one; 1 where not stated. */
  readonly domains?: Readonly<Record<string, number>>;
  readonly metadata: Readonly<Record<string, string>>;
}

/** A graph whose every value has a known element type and a fixed shape. */
export interface TypedGraph extends Graph {
  readonly types: ReadonlyMap<string, TensorType>;
}

/** The standard operator set that graphs are upgraded to. */
export const latestOpset = 21;

type Attributed = Pick<Node, 'attributes'> & Partial<Pick<Node, 'op' | 'name'>>;

function wrongType({ op, name: node = '' }: Attributed, name: string, { type, value }: Attribute, expected: string): never {
  throw new GhostgradError({
    what: `attribute ${name} is of the wrong type`, where: op === undefined ? undefined : showNode({ op, name: node }),
    found: type === 'other' ? value : type, expected, fix: 'export the model again, or repair the node',
  });
}

/** Attributes by name, or what stands in for one that is absent. Each throws GhostgradError for one of another type. */
export function intAttribute(node: Attributed, name: string, fallback: number): number {
  const a = node.attributes[name];
  if (a === undefined) return fallback;
  return a.type === 'int' ? a.value : wrongType(node, name, a, 'int');
}

export function floatAttribute(node: Attributed, name: string, fallback: number): number {
  const a = node.attributes[name];
  if (a === undefined) return fallback;
  return a.type === 'float' || a.type === 'int' ? a.value : wrongType(node, name, a, 'float or int');
}

export function intsAttribute<F extends readonly number[] | undefined>(node: Attributed, name: string, fallback: F): readonly number[] | F {
  const a = node.attributes[name];
  if (a === undefined) return fallback;
  return a.type === 'ints' ? a.value : wrongType(node, name, a, 'ints');
}

export function stringAttribute(node: Attributed, name: string, fallback: string): string {
  const a = node.attributes[name];
  if (a === undefined) return fallback;
  return a.type === 'string' ? a.value : wrongType(node, name, a, 'string');
}

export function floatsAttribute<F extends readonly number[] | undefined>(node: Attributed, name: string, fallback: F): readonly number[] | F {
  const a = node.attributes[name];
  if (a === undefined) return fallback;
  return a.type === 'floats' ? a.value : wrongType(node, name, a, 'floats');
}

export function stringsAttribute(node: Attributed, name: string, fallback: readonly string[]): readonly string[] {
  const a = node.attributes[name];
  if (a === undefined) return fallback;
  return a.type === 'strings' ? a.value : wrongType(node, name, a, 'strings');
}

/** What specialisation asks of the operator table; `ops/` provides it, so that `graph/` knows no operator. */
export interface OperatorSemantics {
  /** Which inputs of a node are settings and never parameters, whatever their type. Default: none. */
  untrained?(node: Node): readonly number[];
  /** Types of the node's outputs. Throws GhostgradError for an unknown operator or impossible operands. */
  infer(
    node: Node,
    inputs: readonly (TensorType | undefined)[],
    constants: readonly (Tensor | undefined)[],
  ): readonly TensorType[];
  /** Values of the outputs when they can be computed from constants at compile time, else undefined. */
  fold(
    node: Node,
    inputs: readonly (TensorType | undefined)[],
    constants: readonly (Tensor | undefined)[],
  ): readonly Tensor[] | undefined;
}

/** `[2, 3]` */
export const showShape = (shape: Shape | readonly Dimension[]): string => `[${shape.map((d) => d ?? '?').join(', ')}]`;
export const showType = (t: TensorType): string => `${t.dtype}${showShape(t.shape)}`;
/** `Conv node "conv1"` */
export const showNode = (node: Pick<Node, 'op' | 'name'>): string => `${node.op} node "${node.name}"`;
