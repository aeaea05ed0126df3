import { collect } from './values.ts';

/** The option `--shape`, for commands that take a model; `parseShapes` and `bindShapes` of training/ read its values. */
export const shapeOption = [
  '--shape <input=dims>',
  'shape of an input, batch first: tokens=B,128; or the size of a symbolic dimension: sequence=128 (may be repeated)',
  collect,
] as const;
