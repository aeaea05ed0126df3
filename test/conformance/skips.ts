import type { Case } from './cases.ts';
import type { Stage } from './run.ts';

/** Cases that are known to fail at a stage, and why that is so. What does not fail, or matches nothing, is an error. */
export interface Skip {
  /** Operators by name, or cases by a pattern of their names. */
  readonly of: readonly string[] | RegExp;
  readonly stage: Stage;
  readonly reason: string;
  /** Whether gradients could be asked for: then the skip is counted as a case not covered. */
  readonly differentiable?: boolean;
}

const random = 'random numbers';
const control = 'control flow';
const sequences = 'sequences of tensors';
const quantised = 'quantised: no gradient through whole numbers';
const dataShapes = 'shapes that depend on the data';
const training = 'a part of a training loop';
const noKernel = 'ONNX Runtime\'s CPU provider has no kernel for this element type';

export const skips: readonly Skip[] = [
  { of: /^node\/cast(like)?_(STRING_to_FLOAT|FLOAT_to_STRING)/, stage: 'import', reason: 'strings' },
  { of: ['StringNormalizer'], stage: 'import', reason: 'strings' },
  { of: /^simple\/sequence_model/, stage: 'shapes', reason: sequences },
  { of: /^node\/(sequence_|split_to_seq)/, stage: 'import', reason: sequences },
  { of: /^node\/(loop13_seq|if_seq|identity_sequence)$/, stage: 'import', reason: sequences },
  { of: /^node\/(optional_|loop16_seq_none|if_opt$|identity_opt$)/, stage: 'import', reason: 'optional values' },
  {
    of: /^node\/resize_.*_tf_half_pixel_for_nn$/, stage: 'import', differentiable: true,
    reason: 'tf_half_pixel_for_nn with another rounding than floor was removed from ONNX',
  },
  {
    of: /^node\/resize_downsample_scales_(linear|cubic)_align_corners$/, stage: 'forward', differentiable: true,
    reason: 'ONNX Runtime aligns the corners of the rounded size, where ONNX aligns those of the exact one',
  },
  { of: /^node\/cast_BFLOAT16_to_FLOAT/, stage: 'forward', reason: 'ONNX Runtime for Node has no bfloat16 tensors' },
  {
    of: /^node\/cast(like)?_(FLOAT_to_BFLOAT16|BFLOAT16_to_FLOAT)/, stage: 'shapes',
    reason: 'the data of these cases are not of the types that their models declare',
  },
  { of: ['Bernoulli'], stage: 'shapes', reason: random },
  { of: ['If', 'Loop', 'Scan'], stage: 'shapes', reason: control },
  { of: /^node\/range_.*_expanded$/, stage: 'shapes', reason: control },
  { of: ['ConvInteger', 'MatMulInteger', 'QLinearConv', 'QLinearMatMul'], stage: 'shapes', reason: quantised },
  { of: /^node\/dynamicquantizelinear(_m.._adjusted)?$/, stage: 'shapes', reason: quantised },
  { of: ['DequantizeLinear'], stage: 'gradient', reason: quantised },
  { of: ['NonMaxSuppression', 'Unique'], stage: 'shapes', reason: dataShapes },
  { of: ['Compress'], stage: 'shapes', reason: dataShapes, differentiable: true },
  { of: ['MaxUnpool', 'RoiAlign'], stage: 'shapes', reason: 'mixes examples: refused', differentiable: true },
  { of: ['Adagrad', 'Adam', 'Momentum'], stage: 'shapes', reason: training },
  { of: /^simple\/gradient_of_/, stage: 'shapes', reason: training },
  { of: ['TfIdfVectorizer'], stage: 'shapes', reason: 'counts of words' },
  { of: /^node\/training_dropout/, stage: 'shapes', reason: 'random: dropout in training mode' },
  { of: /^node\/((max|min)_u?int16|bitshift_(left|right)_uint16)$/, stage: 'forward', reason: noKernel },
  { of: ['MelWeightMatrix'], stage: 'gradient', reason: 'its numbers are settings, which ONNX Runtime does not let be moved' },
  { of: /^node\/pow_types_float32_uint(32|64)$/, stage: 'forward', reason: noKernel },
  {
    of: /^node\/batchnorm_.*_training_mode$/, stage: 'gradient',
    reason: 'statistics of the batch mix examples: refused',
  },
];

const matches = ({ of }: Skip, { name, operator }: Case): boolean =>
  (of instanceof RegExp ? of.test(name) : of.includes(operator));

/** The rule that speaks of this case, if any. */
export const skipOf = (one: Case): Skip | undefined => skips.find((skip) => matches(skip, one));
