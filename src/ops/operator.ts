import type { Node } from '../graph/ir.ts';
import type { Shape, Tensor, TensorType } from '../tensor/tensor.ts';
import type { BatchAxis } from './batch.ts';
import type { GraphBuilder, Value } from './builder.ts';
import type { View } from './view.ts';

/** What a shape rule, a folding rule or a batch rule may look at. */
export interface OperandContext {
  readonly node: Node;
  /** Types of the inputs; undefined where an optional input is omitted. */
  readonly inputs: readonly (TensorType | undefined)[];
  /** Values of those inputs that are known at compile time. */
  readonly constants: readonly (Tensor | undefined)[];
}

/** What a folding rule works with: the values of all the inputs. */
export interface FoldContext extends Omit<OperandContext, 'constants'> {
  readonly constants: readonly Tensor[];
}

export interface ViewContext extends OperandContext {
  readonly outputs: readonly TensorType[];
  readonly view: View;
}

export interface SpreadContext extends OperandContext {
  readonly outputs: readonly TensorType[];
  /** The number of rows of the batch. */
  readonly rows: number;
}

export interface BatchContext extends OperandContext {
  /** Where each input carries the batch; undefined where it does not depend on it. */
  readonly batch: readonly (BatchAxis | undefined)[];
  readonly outputs: readonly TensorType[];
}

/** Where each output carries the batch, or why the operator lets examples mix. */
export type BatchResult = readonly (BatchAxis | undefined)[] | BatchViolation;

export interface BatchViolation {
  /** What the operator does to the batch axis, e.g. `sums over the batch axis (axis 0)`. */
  readonly violation: string;
  readonly axis: number;
  readonly fix: string;
}

/** What a gradient rule works with: it appends nodes to `b` and returns values. */
export interface GradientContext {
  readonly b: GraphBuilder;
  readonly node: Node;
  readonly inputs: readonly Value[];
  readonly outputs: readonly Value[];
  /** One for each output; undefined where nothing flows back. */
  readonly outputGradients: readonly (Value | undefined)[];
  /** Which inputs a gradient is wanted for. A rule may return undefined for the others. */
  readonly needed: readonly boolean[];
}

/** Gradients in the order of the inputs, each of its input's shape; undefined where zero or not wanted. */
export type GradientRule = (context: GradientContext) => readonly (Value | undefined)[];

/** What an obstacle is found by: the types and constants of a node, whatever graph it stands in. */
export interface ObstacleContext extends OperandContext {
  /** Which outputs a gradient would have to flow back from. */
  readonly reached: readonly boolean[];
}

/** A reason why no gradient exists, shown to the user when a trainable parameter lies behind the node. */
export interface NoGradient {
  readonly reason: string;
  readonly fix: string;
}

/**
 * How one use of a parameter contributes to its per-example gradient. Every operand is laid out with the
 * rows of the batch first. `B` is the number of rows, `T` the number of positions the parameter is used at
 * in each row.
 */
export type ParameterUse =
  /**
   * Linear in all disguises: the gradient of row i is Σ_t input[i,t]ᵀ · outputGradient[i,t], a matrix [d, p];
   * the parameter is stored as [p, d] when `transposed`. `scale` multiplies it (Gemm's alpha).
   */
  | {
    readonly kind: 'outer';
    /** [B, T, d] */
    readonly input: Value;
    /** [B, T, p] */
    readonly outputGradient: Value;
    readonly transposed: boolean;
    readonly scale?: number;
  }
  /** Convolution of any rank, stride, padding, dilation and groups; the parameter is [p, d/groups, ...kernel]. */
  | {
    readonly kind: 'convolution';
    /** [B·m, channels, ...spatial]: m ≥ 1 images a row, the row being the outer factor */
    readonly input: Value;
    /** [B·m, p, ...output spatial] */
    readonly outputGradient: Value;
    readonly geometry: ConvolutionGeometry;
  }
  /** Rows of a table picked by integers: the gradient of row i adds outputGradient[i,t] to table row indices[i,t]. */
  | {
    readonly kind: 'gather';
    /** [B, T], int64, already non-negative */
    readonly indices: Value;
    /** [B, T, p] */
    readonly outputGradient: Value;
  }
  /**
   * Bias, scale, any elementwise operand: the gradient of row i is the sum of `gradient[i]` over the axes along
   * which the parameter was broadcast. `gradient` is [B, ...full] as `rowsAligned` lays it out: `full` is the shape
   * of the value the parameter was broadcast to. The parameter's last axis meets the last axis of `full`, or the
   * one `trailing` axes before it (a convolution's bias [p] meets [p, ...spatial] with as many trailing axes).
   */
  | {
    readonly kind: 'broadcast'; readonly gradient: Value; readonly trailing?: number;
    /** Where `gradient` is itself made of sums, which round. */
    readonly summed?: RoundedSums;
  }
  /** Anything else that can say its per-example gradient outright: [B, ...parameter shape]. */
  | { readonly kind: 'opaque'; readonly perExample: Value };

/** Sums of so many numbers of `of`, [B, ...], each of which takes part in one sum of its row. */
export interface RoundedSums {
  readonly of: Value;
  readonly terms: number;
}

export interface ConvolutionGeometry {
  readonly kernel: Shape;
  readonly strides: Shape;
  readonly dilations: Shape;
  /** begin and end for each spatial axis, ONNX order: [b1, b2, …, e1, e2, …]. */
  readonly pads: Shape;
  readonly groups: number;
}

export interface ParameterContext extends GradientContext {
  /** Which input is the parameter. */
  readonly index: number;
  /** Where inputs and outputs carry the batch (a gradient lies as its value does). */
  readonly inputBatch: readonly (BatchAxis | undefined)[];
  readonly outputBatch: readonly (BatchAxis | undefined)[];
}

/** Places of two inputs: whole numbers, and the table whose rows they number. */
export interface LookUp {
  readonly rows: number;
  readonly table: number;
}

/** One operator's whole knowledge. Adding an operator means adding one entry. */
export interface Operator {
  /** Types of the outputs (as many as `node.outputs` has, trailing optional ones included). */
  readonly shape: (context: OperandContext) => readonly TensorType[];
  /** Where the outputs carry the batch. */
  readonly batch: (context: BatchContext) => BatchResult;
  /** How gradients flow to the inputs, or why they cannot. */
  readonly gradient: GradientRule | NoGradient;
  /** Why a node with these attributes or operands has no gradient, although others of its operator have one. */
  readonly obstacle?: (context: ObstacleContext) => NoGradient | undefined;
  /** The use that the node makes of a trainable input; absent where it never takes parameters. */
  readonly parameter?: (context: ParameterContext) => ParameterUse;
  /** Inputs that hold learned weights by what the operator is for: a kernel, a matrix, a table, a scale, a bias. */
  readonly learned?: readonly number[];
  /** Of these, the inputs that are added: biases, shifts. */
  readonly biases?: readonly number[];
  /** Of these, the scales and shifts of normalisations; present, if empty, wherever the operator normalises. */
  readonly normalises?: readonly number[];
  /** Inputs that hold learned weights where they have one number for each channel, and else mostly constants. */
  readonly learnedByChannel?: readonly number[];
  /**
   * How the outputs look at a parameter that input 0 looks at by `view`, where nothing is computed: each element of an
   * output is an element of the input, and no two are the same. Without it the values count as computed.
   */
  readonly view?: (context: ViewContext) => readonly (View | undefined)[];
  /**
   * Where the first output has a row for each of the batch although no input has one: every row is the same, made by
   * repeating an input that has a single one. Its rows are told apart from then on, as those of the batch are.
   */
  readonly spread?: (context: SpreadContext) => BatchAxis | undefined;
  /** Rows of tables that the node looks up, and the inputs that say which. */
  readonly lookUps?: (node: Node) => readonly LookUp[];
  /** Inputs that say nothing but how large the output is: who compares outputs has compared them. */
  readonly sizes?: readonly number[];
  /** Inputs that are statistics or settings and never trained, e.g. BatchNormalization's running mean. */
  readonly untrained?: readonly number[];
  /** Computes the outputs from constants; for the integer arithmetic of shapes. */
  readonly fold?: (context: FoldContext) => readonly Tensor[] | undefined;
  /** Whether `fold` looks at the types of the inputs only (Shape, Size), so that they need not be constant. */
  readonly foldsTypes?: boolean;
}
