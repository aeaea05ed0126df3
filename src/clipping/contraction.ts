import type { GraphBuilder, Value } from '../ops/builder.ts';
import type { ParameterUse } from '../ops/operator.ts';
import type { Shape } from '../tensor/tensor.ts';

/** The sizes that costs are reckoned from: T positions, d inputs and p outputs, in all groups together. */
export interface ContractionSize {
  readonly T: number;
  readonly d: number;
  readonly p: number;
  readonly groups: number;
  /** Length of the vectors whose inner products make the input's Gram matrix (d, or a convolution's channels). */
  readonly gramDepth: number;
  /** How many such Gram matrices are added up: 1, or the elements of a convolution's kernel. */
  readonly gramTerms: number;
  /** How many of the positions only read a row of a table, and take part in no product; default 0. */
  readonly read?: number;
  /** Multiplications in the Gram matrices; by default T² for each of the gramDepth and p numbers. */
  readonly gramProducts?: number;
  /** Roundings of an entry of both Gram matrices together; by default as many as numbers are added up. */
  readonly gramRoundings?: number;
  /** Whether the input is unfolded into patches. */
  readonly unfolded: boolean;
  /** Whether the d inputs are rows of a table, one picked at each position: no product is formed, and no Gram matrix. */
  readonly picked?: boolean;
}

/**
 * A squared per-example norm as float32 computes it, and what it may lack of the true one:
 * true ≤ √(squared + allowance + lost) + error. All but `lost` are [U]; what is left out is 0.
 */
export interface NormParts {
  readonly squared: Value;
  /** What rounding of the squared norm itself may have hidden. */
  readonly allowance?: Value;
  /** What squares and products too small for float32 may have hidden, the same for every unit. */
  readonly lost?: number;
  /** Distance (in norm) of the gradient that was measured from the true one, where it was formed in float32 first. */
  readonly error?: Value;
  /** Distance of the true gradient from what float32 makes of it in a sum that is not of the measured one. */
  readonly sumError?: Value;
}

/** Per-unit weights of the clipped sum of one group's parameters. */
export interface Weights {
  /** [1, U] clip weights, 0 where the unit is dropped. */
  readonly weights: Value;
  /** [U] bool: false for padding and for units whose gradient is not finite, in any group. */
  readonly valid: Value;
}

/**
 * What can be done with a parameter's use. U is the number of privacy units in the batch; a unit's rows are
 * merged with the positions. Every function appends to the builder; the builder reuses what was appended before.
 */
export interface Contraction {
  readonly size: ContractionSize;
  /** The norm without forming per-example gradients, where the kind has one. */
  readonly ghost?: () => NormParts;
  /** The norm from {@link perExample}. */
  readonly instantiated: () => NormParts;
  /** Per-example gradients [U, ...parameter shape]; those of units whose operands are not finite may be anything. */
  readonly perExample: () => Value;
  /** Σ weight·gradient from {@link perExample}. */
  readonly weightedSum: (weights: Weights | undefined) => Value;
  /** Σ weight·gradient without forming per-example gradients; plain sum when no weights are given. */
  readonly product?: (weights: Weights | undefined) => Value;
  /** The output gradients [U, T, p] that the gradient is a sum of products or a plain sum of, where it is of no others. */
  readonly outputGradient?: Value;
  /** Their Gram matrices, where {@link ghost} forms them. */
  readonly outputGram?: () => OutputGram;
  /** The norm from Gram matrices that another parameter's norm forms of the same output gradients, and the sum beside it. */
  readonly fromGram?: (gram: () => OutputGram) => Pick<Required<Contraction>, 'size' | 'ghost' | 'product'>;
}

/** The Gram matrices of output gradients, and how they were added up. */
export interface OutputGram {
  /** [U, T, T] */
  readonly gram: Value;
  readonly roundings: number;
  readonly operations: number;
}

/** What every contraction of a step shares. */
export interface Context {
  readonly b: GraphBuilder;
  readonly parameterShape: Shape;
  readonly units: number;
  /** Whether non-finite rows are to be kept out of products (private modes). */
  readonly guarded: boolean;
}

/** A use of one kind. */
export type Use<K extends ParameterUse['kind']> = Extract<ParameterUse, { kind: K }>;
